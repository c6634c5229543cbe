"""The compiled program alone: orders, requests and what becomes of malformed ones."""

from __future__ import annotations

import contextlib
import marshal
import os
import resource
import secrets
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bashd.daemon import code
from bashd.daemon.memfd import sealed_memfd, sealed_program
from bashd.daemon.seccomp import NO_FILTERS, Filters, Switches, compile_filters
from bashd.launcher import wire
from bashd.launcher.channel import CutOffError, receive
from tests.support.accounts import argv_as
from tests.support.launchers import is_spare, is_zygote
from tests.support.stations import sys_python
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from tests.support.accounts import Account

SHOW = b"cat /proc/$$/environ; :"
"""Prints exactly what bash was given: it stays, for there is something left to do."""
FEW = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


class Ended(NamedTuple):
    """What became of one spare."""

    said: list[bytes]
    """Its packets on the request socket."""
    stdout: bytes
    status: int


class Host:
    """A keeper, started as a daemon does it, and the spares it was asked for."""

    def __init__(
        self,
        filters: Filters = NO_FILTERS,
        *,
        as_fd: int = 0,
        home_fd: int = -1,
        **cell: object,
    ) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        fd = theirs.fileno()
        command = [
            sys.executable,
            "-P",
            "-m",
            "bashd.launcher.keeper",
            str(as_fd or fd),
        ]
        if as_fd:
            command = ["bash", "-c", f'exec "$@" {as_fd}<&{fd}', "bash", *command]
        self.process = subprocess.Popen(
            command,
            pass_fds=(fd,),
            env={"PYTHONPATH": str(Path(code.__file__).parents[2])},
            start_new_session=True,
        )
        theirs.close()
        settings = sealed_memfd("settings", marshal.dumps(cell))
        sealed = [settings, *(sealed_memfd("filter", program) for program in filters)]
        fds = [settings, code.keeper_fd(), *sealed[1:]]
        if home_fd >= 0:
            fds.append(home_fd)
        socket.send_fds(self.control, [wire.CONFIG], fds)
        for fd in sealed:
            os.close(fd)
        self.said, _ = receive(self.control, 0)
        self.serial = 0

    def close(self) -> None:
        """End it; it leaves by itself when nobody can order any more."""
        self.control.close()
        assert self.process.wait(10) == 0

    @contextlib.contextmanager
    def spare(self) -> Generator[tuple[socket.socket, int, int]]:
        """Order a spare; yields its request socket, its stdout and its pid."""
        self.serial += 1
        self.control.send(wire.pack(wire.FORK, b"%d" % self.serial))
        message, fds = receive(self.control, 4)
        ready = wire.SpareReady.decode(message, fds)
        request_fd, out_fd, err_fd, pidfd = fds
        request = socket.socket(fileno=request_fd)
        try:
            yield request, out_fd, ready.cell_pid
        finally:
            request.close()
            for fd in (out_fd, err_fd, pidfd):
                os.close(fd)

    def processes(self) -> list[int]:
        """Return the keeper and its zygote."""
        keeper = self.process.pid
        tasks = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
        return [keeper, *(pid for pid in map(int, tasks) if is_zygote(pid))]

    def exit_code(self) -> int:
        """Return how the last spare ended, and have it forgotten."""
        ended = wire.Exited.decode(*receive(self.control, 0))
        assert ended.serial == self.serial
        self.control.send(wire.pack(wire.ACK, b"%d" % ended.serial))
        return os.waitstatus_to_exitcode(ended.status)

    def serve(self, packet: bytes, fds: list[int] | None = None) -> Ended:
        """Send one packet to a fresh spare and see it through."""
        with self.spare() as (request, out_fd, _):
            socket.send_fds(request, [packet], fds or [])
            said: list[bytes] = []
            while packet := request.recv(wire.PACKET_BYTES):
                said.append(packet)
            with os.fdopen(os.dup(out_fd), "rb") as stdout:
                printed = stdout.read()
        return Ended(said, printed, self.exit_code())


@pytest.fixture
def host() -> Iterator[Host]:
    made = Host()
    yield made
    made.close()


def a_request(**changes: object) -> wire.Request:
    """Return a request that works, in ``/``."""
    root = Path("/").stat()
    plain = wire.Request(
        command=b"true",
        workdir=b"/",
        workdir_dev=root.st_dev,
        workdir_ino=root.st_ino,
        has_stdin=False,
        has_script=False,
        limits=(),
        environment=(b"PATH=/usr/bin:/bin",),
    )
    return plain._replace(**changes)


def failed_step(ended: Ended) -> str:
    """Return the step a spare said it failed at, after having run nothing."""
    (message,) = ended.said
    assert message[:1] == wire.STEP_FAILED
    assert (ended.stdout, ended.status) == (b"", 127)
    return wire.Failed.decode(message, []).step


names = st.from_regex(rb"\A[A-Za-z][A-Za-z0-9]{0,8}\Z")
texts = st.binary(max_size=40).map(lambda text: text.replace(b"\0", b"."))


@given(variables=st.dictionaries(names, texts, max_size=12))
@FEW
def test_bash_gets_exactly_the_environment_that_was_sent(
    host: Host, variables: dict[bytes, bytes]
):
    # No command needs them to be found, whatever PATH says.
    variables = {name: value for name, value in variables.items() if name != b"PATH"}
    entries = (b"PATH=/usr/bin:/bin", *map(b"=".join, variables.items()))
    ended = host.serve(a_request(command=SHOW, environment=entries).encode())
    assert ended.said == [wire.RUNNING]
    assert ended.stdout.split(b"\0")[:-1] == list(entries)


@given(garbage=st.binary(max_size=200))
@FEW
def test_no_nonsense_runs_anything(host: Host, garbage: bytes):
    for packet in (b"?" + garbage, wire.REQUEST + garbage.replace(b"R", b"r")):
        assert failed_step(host.serve(packet)) == "spare"


@given(data=st.data())
@FEW
def test_a_request_that_was_cut_short_runs_nothing(host: Host, data: st.DataObject):
    whole = a_request(limits=((resource.RLIMIT_CORE, 0, 0),)).encode()
    # Up to the last of the fields that each request has.
    fixed = whole.rindex(b"\0")
    cut = whole[: data.draw(st.integers(1, fixed - 1))]
    assert failed_step(host.serve(cut)) in ("spare", "workdir", "workdir-changed")


@pytest.mark.parametrize(
    ("changes", "count", "step"),
    [
        ({"has_stdin": True}, 0, "spare"),
        ({}, 1, "spare"),
        ({"has_stdin": True, "has_script": True}, 1, "spare"),
        ({"workdir": b"/nowhere"}, 0, "workdir"),
        ({"workdir": b"/proc/self/cwd"}, 0, "workdir"),
        ({"workdir_ino": 1 << 60}, 0, "workdir-changed"),
        ({"limits": ((99, 1, 1),)}, 0, "rlimits"),
        ({"limits": ((resource.RLIMIT_CORE, 2, 1),)}, 0, "rlimits"),
    ],
)
def test_the_step_that_fails_is_named(
    host: Host, changes: dict[str, object], count: int, step: str
):
    fds = [os.open("/dev/null", os.O_RDONLY) for _ in range(count)]
    try:
        assert failed_step(host.serve(a_request(**changes).encode(), fds)) == step
    finally:
        for fd in fds:
            os.close(fd)
    assert host.serve(a_request().encode()).said == [wire.RUNNING]


def test_a_shell_that_cannot_be_executed_is_the_last_step():
    host = Host(bash="/nowhere/bash")
    running, failure = host.serve(a_request().encode()).said
    host.close()
    assert running == wire.RUNNING
    step, reason = wire.Failed.decode(failure, [])
    assert step == "exec"
    assert "ENOENT" in reason
    assert "/nowhere/bash" in reason


@pytest.mark.parametrize("number", [*range(3, 13), *range(99, 109)])
def test_the_control_socket_may_have_any_number(number: int):
    host = Host(as_fd=number)
    assert host.said[:1] == wire.HELLO, host.said
    assert host.serve(a_request().encode()).said == [wire.RUNNING]
    host.close()


def test_exits_are_reported_though_whoever_started_it_ignores_them():
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        host = Host()
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert host.serve(a_request(command=b"exit 3").encode()).status == 3
    host.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes somebody who has no processes")
def test_a_cell_that_may_not_fork_says_so():
    before = resource.getrlimit(resource.RLIMIT_NPROC)
    resource.setrlimit(resource.RLIMIT_NPROC, (1, before[1]))
    try:
        host = Host(become=[4_000_001, 4_000_001, []])
    finally:
        resource.setrlimit(resource.RLIMIT_NPROC, before)
    failed = wire.Failed.decode(host.said, [])
    assert failed.step == "zygote"
    assert "EAGAIN" in failed.reason
    host.control.close()
    assert host.process.wait(10) != 0


def test_a_cell_whose_mounts_are_not_there_does_not_start(tmp_path: Path):
    found = tmp_path.stat()
    there = [str(tmp_path), found.st_dev, found.st_ino, False]
    for wrong in (
        [str(tmp_path), found.st_dev, found.st_ino, True],
        [str(tmp_path), found.st_dev, found.st_ino + 1, False],
        [str(tmp_path / "nothing"), found.st_dev, found.st_ino, False],
    ):
        host = Host(mounts=[there, wrong])
        failed = wire.Failed.decode(host.said, [])
        assert failed.step == "mounts"
        assert str(wrong[0]) in failed.reason
        host.control.close()
        assert host.process.wait(10) != 0


def test_a_mount_that_goes_while_the_cell_lives_is_the_step_that_fails(tmp_path: Path):
    place = tmp_path / "place"
    place.mkdir()
    found = place.stat()
    host = Host(mounts=[[str(place), found.st_dev, found.st_ino, False]])
    assert host.serve(a_request().encode()).said == [wire.RUNNING]
    place.rename(tmp_path / "elsewhere")
    assert failed_step(host.serve(a_request().encode())) == "mounts"
    place.mkdir()
    assert failed_step(host.serve(a_request().encode())) == "mounts"
    place.rmdir()
    (tmp_path / "elsewhere").rename(place)
    assert host.serve(a_request().encode()).said == [wire.RUNNING]
    host.close()


@pytest.mark.parametrize("place", ["link", "link/inner", "folder/../link"])
def test_no_link_leads_to_the_working_folder(tmp_path: Path, place: str):
    inner = tmp_path / "folder" / "inner"
    inner.mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    # Both ways: openat2, and step by step where a filter refuses it.
    stepwise = Switches(
        shared_host=True, unix_sockets=True, inet_sockets=True, namespaces=False,
        truncation=False,
    )  # fmt: skip
    for filters in (NO_FILTERS, compile_filters(stepwise)):
        host = Host(filters)
        linked = a_request(workdir=os.fsencode(tmp_path / place), workdir_ino=0)
        ended = host.serve(linked.encode())
        assert failed_step(ended) == "workdir"
        assert b"ELOOP" in ended.said[0]
        there = a_request(command=b"pwd", workdir=os.fsencode(inner), workdir_ino=0)
        assert host.serve(there.encode()).stdout == b"%s\n" % os.fsencode(inner)
        host.close()


def test_limits_are_lowered_and_never_raised(host: Host):
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    for soft, hard, shown in (
        (100, 200, "100 200"),
        (-1, -1, f"{most} {most}"),
        (50, -1, f"50 {most}"),
    ):
        limits = ((resource.RLIMIT_NOFILE, soft, hard), (resource.RLIMIT_CORE, 0, 0))
        command = b"echo $(ulimit -Sn) $(ulimit -Hn) $(ulimit -c)"
        ended = host.serve(a_request(command=command, limits=limits).encode())
        assert ended.stdout.decode() == f"{shown} 0\n"


def test_stdin_a_script_and_a_long_request_come_as_files(host: Host, tmp_path: Path):
    word = secrets.token_hex(8)
    (tmp_path / "in").write_text(word)
    with (tmp_path / "in").open("rb") as stdin:
        script = sealed_memfd("script", b"cat; echo; ls /proc/self/fd | wc -l")
        long = a_request(has_stdin=True, has_script=True, command=b"").encode()
        payload = sealed_memfd("request", long)
        ended = host.serve(wire.REQUEST_MEMFD, [payload, stdin.fileno(), script])
    os.close(script)
    os.close(payload)
    # Of descriptors, `ls` has the three and the folder it reads.
    assert ended.stdout.decode().split("\n")[:2] == [word, "4"]


def test_a_command_starts_with_every_signal_at_its_default(host: Host):
    ended = host.serve(a_request(command=b"cat /proc/self/status").encode())
    lines = dict(line.split(":\t") for line in ended.stdout.decode().splitlines())
    masks = {name: lines[name] for name in ("SigBlk", "SigIgn", "SigCgt")}
    assert {int(mask, 16) for mask in masks.values()} == {0}, masks


def test_a_spare_that_waits_shrugs_signals_off(host: Host):
    with host.spare() as (request, out_fd, pid):
        eventually(lambda: is_spare(pid), "its name")
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGRTMIN):
            os.kill(pid, number)
        request.send(a_request(command=b"echo fine").encode())
        with os.fdopen(os.dup(out_fd), "rb") as stdout:
            assert stdout.read() == b"fine\n"
    assert host.exit_code() == 0


SLEEP = """
import os, sys
program = int(sys.argv[1]) if sys.argv[1:] else "/bin/sleep"
os.execve(program, ["sleep", "60"], {"CANARY": "x"})
"""


@pytest.mark.parametrize("only_executable", [False, True])
def test_what_may_only_be_executed_is_closed_to_its_own_user(
    ordinary_user: Account, *, only_executable: bool
):
    fds = []
    if only_executable:
        fds = [sealed_program("sleep", Path("/bin/sleep").read_bytes())]
    argv = [sys_python(), "-c", SLEEP, *map(str, fds)]
    process = subprocess.Popen(argv_as(ordinary_user, argv), pass_fds=fds, cwd="/")
    try:
        program = Path(f"/proc/{process.pid}/exe")
        eventually(lambda: "sleep" in str(program.readlink()), "exec")
        look = argv_as(ordinary_user, ["cat", f"/proc/{process.pid}/environ"])
        seen = subprocess.run(look, capture_output=True, text=True, check=False)
        if only_executable:
            assert "Permission denied" in seen.stderr
        assert ("CANARY=x" in seen.stdout) is not only_executable
    finally:
        process.kill()
        process.wait()
        for fd in fds:
            os.close(fd)


def test_a_spare_nobody_wants_leaves_without_a_word(host: Host):
    with host.spare() as (request, _, _):
        request.shutdown(socket.SHUT_WR)
        assert request.recv(100) == b""
    assert host.exit_code() == 127


def test_a_tree_is_ended_when_no_descriptor_is_left(host: Host):
    with host.spare() as (request, out_fd, _):
        request.send(a_request(command=b"sleep 60 & echo; wait").encode())
        assert os.read(out_fd, 100) == b"\n"
        keeper = host.process.pid
        resource.prlimit(keeper, resource.RLIMIT_NOFILE, (10, 10))
        host.control.send(wire.pack(wire.KILL, b"%d" % host.serial, b""))
        host.control.settimeout(10)
        assert host.exit_code() == -signal.SIGKILL
        # Nobody can write to it any more.
        assert os.read(out_fd, 100) == b""


def test_a_keeper_that_is_stopped_while_it_is_taken_in_goes_on(tmp_path: Path):
    folder = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    home = {"name": "adopt", "uid": os.geteuid(), "cell": "c", "secret": "s"}
    host = Host(home_fd=folder, home={**home, "timeout_s": 20})
    os.close(folder)
    keeper = host.process.pid
    with (
        host.spare() as (request, _, _),
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as at_home,
    ):
        request.send(a_request(command=b"exec sleep 60").encode())
        assert request.recv(100) == wire.RUNNING
        at_home.bind(os.fspath(tmp_path / "adopt"))
        at_home.listen()
        host.control.send(wire.pack(wire.TASK, b"%d" % host.serial))
        hold(host, 2, b"older")
        host.control.close()
        host.control, _ = at_home.accept()
        adopt = wire.Adopt.decode(*receive(host.control, 0))
        assert adopt == ("c", "s")
        os.kill(keeper, signal.SIGSTOP)
        eventually(lambda: state(keeper) == "T", "its stop")
        os.kill(keeper, signal.SIGCONT)
        eventually(lambda: state(keeper) == "S", "its waiting")
        host.control.send(wire.Adopt.YES)
        message, fds = receive(host.control, wire.TaskHeld.MAX_FDS)
        held = wire.TaskHeld.decode(message, fds)
        assert (held.serial, held.second_pipes) == (host.serial, (2,))
        assert os.read(fds[3], 100) == b"older"
        for fd in fds:
            os.close(fd)
        assert receive(host.control, 0) == (wire.TASKS_END, [])
    host.control.send(wire.END)
    assert host.process.wait(10) == 0
    host.control.close()


VAST = """
import ctypes, signal, struct
libc = ctypes.CDLL(None)
libc.mmap.restype = libc.sbrk.restype = ctypes.c_void_p
size = 1 << 28
place = libc.mmap(None, ctypes.c_size_t(size), 1, 0x4022, -1, ctypes.c_size_t(0))
stat = open("/proc/self/stat").read().rpartition(")")[2].split()
code, data, brk, stack, args = (
    [int(stat[at - 3]) for at in fields]
    for fields in ((26, 27), (45, 46), (47,), (28,), (48, 49))
)
where = [*code, *data, *brk, libc.sbrk(0), *stack, *args, place, place + size]
# struct prctl_mm_map, linux/prctl.h: without a new auxv or executable.
change = struct.pack("=11QQIi", *where, 0, 0, -1)
changed = libc.prctl(35, 14, change, ctypes.c_ulong(len(change)), 0)
print("vast" if changed == 0 else "refused", flush=True)
signal.pause()
"""


def test_no_environment_is_too_long_to_be_looked_through():
    host = Host()
    with host.spare() as (request, out_fd, _):
        command = f"setsid {sys.executable} -Ic '{VAST}' & sleep 60".encode()
        request.send(a_request(command=command).encode())
        said = os.read(out_fd, 100)
        kill = wire.pack(wire.KILL, b"%d" % host.serial, b"BASHD_RUN_ID=1")
        host.control.send(kill)
        assert host.exit_code() == -signal.SIGKILL
    status = Path(f"/proc/{host.process.pid}/status").read_text()
    host.close()
    if said != b"vast\n":
        pytest.skip("this kernel lets nobody say where his environment is")
    most_kib = int(status.partition("VmHWM:")[2].split()[0])
    assert most_kib < 32 * 1024


TRACE = """
import ctypes, signal, sys
seize = ctypes.CDLL(None).ptrace(0x4206, int(sys.argv[1]), 0, 0)
print(seize, flush=True)
signal.pause()
"""


@contextlib.contextmanager
def traced(pid: int) -> Generator[subprocess.Popen[bytes]]:
    """Have a command traced by a process that does not wait for it."""
    argv = [sys.executable, "-c", TRACE, str(pid)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as tracer:
        assert tracer.stdout is not None
        try:
            if tracer.stdout.readline() != b"0\n":
                pytest.skip("nothing may be traced here")
            yield tracer
        finally:
            tracer.kill()


def test_an_end_that_a_tracer_withholds_is_reported_when_it_lets_go(host: Host):
    with host.spare() as (request, _, pid):
        request.send(a_request(command=b"exec sleep 60").encode())
        assert request.recv(100) == wire.RUNNING
        with traced(pid) as tracer:
            os.kill(pid, signal.SIGKILL)
            eventually(lambda: state(pid) == "Z", "its end")
            before = cpu_ticks(host.process.pid)
            time.sleep(0.3)
            assert cpu_ticks(host.process.pid) - before < 10
            tracer.kill()
            assert host.exit_code() == -signal.SIGKILL


def test_a_keeper_does_not_wait_for_what_a_tracer_withholds():
    host = Host()
    with host.spare() as (request, _, pid):
        request.send(a_request(command=b"exec sleep 60").encode())
        assert request.recv(100) == wire.RUNNING
        with traced(pid):
            host.control.close()
            # The end of the cell waits for its processes, but not for ever.
            assert host.process.wait(10) == 0


def state(pid: int) -> str:
    """Return the state of a process, as ps(1) shows it."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def cpu_ticks(pid: int) -> int:
    """Return how long a process has run, in hundredths of a second."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


@pytest.mark.parametrize("order", [b"K", b"Kx", b"N1\0002", b"A" + b"9" * 40])
def test_a_malformed_order_ends_the_cell_and_all_that_is_in_it(order: bytes):
    host = Host()
    with host.spare() as (request, _, pid):
        request.send(a_request(command=b"sleep 600").encode())
        assert request.recv(100) == wire.RUNNING
        keeper, zygote = host.processes()
        os.kill(zygote, signal.SIGSTOP)
        host.control.send(order)
        failed = wire.Failed.decode(*receive(host.control, 0))
        assert failed.step == "launcher"
        assert host.process.wait(10) == 127
        assert [p for p in (keeper, zygote, pid) if is_there(p)] == []
    host.control.close()


def is_there(pid: int) -> bool:
    """Whether a process has not ended."""
    with contextlib.suppress(OSError):
        return (
            Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        )
    return False


def test_no_descriptor_of_a_spare_that_is_gone_is_kept(host: Host):
    before = [descriptors(pid) for pid in host.processes()]
    for _ in range(20):
        assert host.serve(a_request().encode()).status == 0
    # It has told of the last one before it was told to forget it.
    eventually(
        lambda: [descriptors(pid) for pid in host.processes()] == before, "their end"
    )


@pytest.mark.parametrize("count", [6, 7, 12, 60])
def test_more_descriptors_than_any_message_has_are_cut_off(host: Host, count: int):
    with Path("/dev/null").open() as null:
        fds = [null.fileno()] * count
        ended = host.serve(a_request().encode(), fds)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        before = descriptors(os.getpid())
        with ours, theirs:
            socket.send_fds(ours, [b"x"], fds)
            with pytest.raises(CutOffError):
                receive(theirs, wire.TaskHeld.MAX_FDS)
            assert descriptors(os.getpid()) == before
    failed = wire.Failed.decode(ended.said[-1], [])
    assert failed == ("spare", "packet cut off")


def test_what_an_earlier_keeper_hands_over_is_understood():
    held = wire.TaskHeld.decode(wire.pack(wire.TASK, b"7", b"12"), [3, 4, 5])
    assert held == (7, 12, (), False)
    held = wire.TaskHeld.decode(
        wire.pack(wire.TASK, b"7", b"12", b"0", b"1"), [3, 4, 5, 6]
    )
    assert held == (7, 12, (2,), True)
    for fields, count in ((3, 3), (1, 3), (5, 3), (2, 4), (4, 3)):
        message = wire.pack(wire.TASK, *[b"1"] * fields)
        with pytest.raises(wire.WireError):
            wire.TaskHeld.decode(message, list(range(count)))


def hold(host: Host, stream: int, text: bytes) -> None:
    """Have a pipe with *text* held for the last spare."""
    reader, writer = os.pipe()
    os.write(writer, text)
    message = wire.pack(wire.HOLD, b"%d" % host.serial, b"%d" % stream)
    socket.send_fds(host.control, [message], [reader])
    os.close(reader)
    os.close(writer)
    host.control.settimeout(10)
    answer = wire.PipeHeld.decode(*receive(host.control, 0))
    host.control.settimeout(None)
    assert answer == (host.serial, stream)


def test_one_pipe_a_stream_is_held_and_dropped_with_the_others(host: Host):
    (keeper, _), before = host.processes(), None
    with host.spare() as (request, _, _):
        request.send(a_request(command=b"exec sleep 60").encode())
        assert request.recv(100) == wire.RUNNING
        before = descriptors(keeper)
        for number in range(1, 4):
            hold(host, 1, b"again")
            hold(host, 2, b"again")
            assert descriptors(keeper) == before + 2, number
        host.control.send(wire.pack(wire.DROP, b"%d" % host.serial))
        eventually(lambda: descriptors(keeper) == before - 2, "all four to be closed")
        serial = b"%d" % host.serial
        for fields in ((serial, b"0"), (serial, b"3"), (b"99", b"1"), (serial, b"1")):
            with Path("/dev/null").open() as other:
                packet = wire.pack(wire.HOLD, *fields)
                socket.send_fds(host.control, [packet], [other.fileno()])
        host.control.send(wire.pack(wire.HOLD, serial, b"1"))
        host.control.send(wire.pack(wire.KILL, serial, b""))
        assert host.exit_code() == -signal.SIGKILL
        # Nobody said anything in between, and nothing of it was kept.
        eventually(lambda: descriptors(keeper) == before - 3, "the end of the command")


CROWD = """
import resource, socket, sys
# The zygote's stays high, so that it is the keeper who cannot pass a spare on.
resource.prlimit(int(sys.argv[2]), resource.RLIMIT_NOFILE, (100, 100))
way = socket.socket(fileno=int(sys.argv[1]))
socket.send_fds(way, [b"?"], [0] * 200)
"""


def test_an_order_outlasts_a_user_with_too_many_descriptors_on_their_way(
    ordinary_user: Account,
):
    become = None
    if os.geteuid() != ordinary_user.uid:
        become = [ordinary_user.uid, ordinary_user.gid, []]
    host = Host(become=become)
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            fd = theirs.fileno()
            argv = [sys_python(), "-c", CROWD, str(fd), str(host.process.pid)]
            subprocess.run(argv_as(ordinary_user, argv), pass_fds=(fd,), check=True)
        host.control.send(wire.pack(wire.FORK, b"7"))
        host.control.settimeout(0.5)
        with pytest.raises(TimeoutError):
            host.control.recv(100)
        host.control.settimeout(None)
    message, fds = receive(host.control, 4)
    for fd in fds:
        os.close(fd)
    assert wire.SpareReady.decode(message, fds).serial == 7
    host.close()


def descriptors(pid: int) -> int:
    """Return how many descriptors a process has."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))
