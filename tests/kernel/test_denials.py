"""Denials that the kernel proves: audit is on, and root's daemon reads its records."""

from __future__ import annotations

import itertools
import json
import os
import shlex
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from bashd.core.model import RunResult, Verdict
from tests.conftest import DaemonFactory
from tests.support.accounts import Account
from tests.support.audit import BACKLOG, Audit
from tests.support.stations import (
    READ_ONLY,
    ROOT_BWRAP,
    ROOT_LANDLOCK,
    SERVED_BWRAP,
    SERVED_LANDLOCK,
    WORKSPACE_WRITE,
    Combination,
    Station,
)

OWN: dict[str, dict[str, object]] = {"limits": {"connections": 999}}
"""Settings of no other test, so that these daemons start when audit is on."""
BY_ROOT = (ROOT_LANDLOCK, SERVED_LANDLOCK, ROOT_BWRAP, SERVED_BWRAP)
LANDLOCK = (ROOT_LANDLOCK, SERVED_LANDLOCK)

Open = Callable[..., Station]


@pytest.fixture
def recorded(
    request: pytest.FixtureRequest, audit: Audit, open_station: Open
) -> Station:
    """A station on a daemon that reads the kernel's records."""
    return open_station(request.param, settings=OWN)


def on(*combinations: Combination) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "recorded", combinations, ids="-".join, indirect=True
    )


def facts(result: RunResult) -> Any:
    assert result.sandbox is not None
    return result.sandbox


def refusals(result: RunResult) -> list[tuple[str | None, str | None, str]]:
    return [(d.path, d.operation, d.evidence) for d in facts(result).denials]


# -- never a denial where nothing was refused ---------------------------------------------


@on(*BY_ROOT)
@pytest.mark.parametrize("command", ["true", "ls", "python3 -c 1", "git --version"])
def test_twenty_harmless_commands_are_never_denied(recorded: Station, command: str):
    for _ in range(20):
        result = recorded.run(command, READ_ONLY)
        assert result.exit_code == 0, result
        assert facts(result).verdict is Verdict.NONE, result


@on(*BY_ROOT)
@pytest.mark.parametrize("name", ["/dev/stderr", "/dev/stdout", "/dev/fd/2"])
def test_a_stream_that_is_opened_by_its_name_is_no_denial(recorded: Station, name: str):
    for command in (f"echo x > {name}", f"echo x | tee -a {name}"):
        result = recorded.run(command)
        assert result.exit_code == 0, result
        assert facts(result).verdict is Verdict.NONE, result


@on(*LANDLOCK)
@pytest.mark.parametrize(
    "command",
    [
        "echo 'app: Permission denied' >&2; exit 1",
        "echo \"mkdir: cannot create directory '/etc/x': Permission denied\" >&2; exit 1",
        "echo 'PermissionError: [Errno 13] Permission denied: \"/etc/x\"' >&2; exit 1",
        "false",
        "cat /no/such/file",
    ],
)
def test_an_applications_own_words_are_no_denial(recorded: Station, command: str):
    result = recorded.run(command)
    assert result.exit_code == 1
    assert (facts(result).denied, facts(result).verdict) == (False, Verdict.NONE)


@on(SERVED_LANDLOCK)
def test_a_file_mode_that_refuses_is_not_the_sandbox(recorded: Station):
    secret = recorded.make("outside/secret")
    secret.chmod(0o600)
    os.chown(secret, 0, 0)
    result = recorded.run(f"cat {secret}")
    assert "Permission denied" in result.stderr.text
    assert facts(result).verdict is Verdict.NONE


# -- always a denial where something was --------------------------------------------------

SWALLOWED = [
    ": > {outside}/x || true",
    "(echo x > {outside}/x) 2>/dev/null; exit 0",
    "mkdir {outside}/d 2>/dev/null; exit 0",
    "echo x >> {outside}/old 2>/dev/null || true",
    "rm -f {outside}/old 2>/dev/null; exit 0",
    "mv {outside}/old {outside}/new 2>/dev/null; exit 0",
    "ln -s x {outside}/l 2>/dev/null; exit 0",
    'python3 -c \'open("{outside}/p", "w")\' 2>/dev/null; exit 0',
    "truncate -s 0 {outside}/old 2>/dev/null; exit 0",
    "bash -c 'bash -c \": > {outside}/deep\"' 2>/dev/null; exit 0",
]


@on(*LANDLOCK)
@pytest.mark.parametrize("command", SWALLOWED)
def test_a_swallowed_refusal_is_known(recorded: Station, command: str):
    recorded.make("outside/old")
    for _ in range(5):
        result = recorded.run(command.format(outside=recorded.outside))
        assert result.exit_code == 0, result
        assert facts(result).verdict is Verdict.DENIED, result
        assert facts(result).denied is True
        folder = str(recorded.outside)
        assert any((path or "").startswith(folder) for path, _, _ in refusals(result))
        assert {evidence for _, _, evidence in refusals(result)} == {"kernel"}


@on(*LANDLOCK)
def test_each_refusal_names_object_operation_and_program(recorded: Station):
    recorded.make("outside/old")
    recorded.make("workspace/f")
    out = recorded.outside
    for command, path, operation, program in (
        (f"touch {out}/t", f"{out}/t", "create", "touch"),
        (f": > {out}/b", f"{out}/b", "create", "bash"),
        (f"mkdir {out}/d", f"{out}/d", "create", "mkdir"),
        (f"rm {out}/old", f"{out}/old", "remove", "rm"),
        (f"echo x >> {out}/old", f"{out}/old", "write", "bash"),
        (f"mv {out}/old {out}/new", f"{out}/new", "rename", "mv"),
        (f"ln f {out}/l", f"{out}/l", "link", "ln"),
        (f"truncate -s 0 {out}/old", f"{out}/old", "write", "truncate"),
    ):
        result = recorded.run(command)
        assert result.exit_code != 0, command
        denials = facts(result).denials
        found = {(d.path, d.operation, d.process) for d in denials}
        assert (path, operation, program) in found, (command, denials)


@on(*LANDLOCK)
def test_a_masked_file_is_a_recorded_refusal(recorded: Station):
    result = recorded.run("cat /etc/shadow > /dev/null")
    if recorded.caller.is_root:
        assert ("/etc/shadow", "read", "kernel") in refusals(result)
    assert facts(result).denied is True or not recorded.caller.is_root


@on(*BY_ROOT)
def test_a_signal_to_the_outside_is_recorded_on_both_runners(recorded: Station):
    # The keeper of this very cell: a process of the caller's uid that is no command.
    result = recorded.run("kill -0 1; kill -CONT $PPID")
    if recorded.under_bwrap:
        # In its own pid namespace there is nobody else to signal.
        assert facts(result).verdict in (Verdict.NONE, Verdict.DENIED)
    else:
        assert "signal" in {operation for _, operation, _ in refusals(result)}


@on(*BY_ROOT)
def test_an_abstract_socket_of_the_host_is_a_recorded_refusal(recorded: Station):
    name = f"bashd-test-{recorded.folder.name}"
    program = (
        f"import socket\ns = socket.socket(socket.AF_UNIX)\ns.connect('\\0{name}')\n"
    )
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")
        listener.listen()
        result = recorded.run("python3 -", stdin=program.encode())
    assert result.exit_code == 1
    if recorded.under_bwrap:
        assert (f"@{name}", "connect", "kernel") in refusals(result)
        assert facts(result).verdict is Verdict.DENIED


@on(*LANDLOCK)
def test_commands_side_by_side_get_their_own_refusals(recorded: Station):
    sessions = [recorded.open() for _ in range(4)]

    def work(index: int) -> list[tuple[int, RunResult]]:
        done: list[tuple[int, RunResult]] = []
        for number in range(index, 24, 4):
            touch = f"touch {recorded.outside}/n{number} 2>&1; exit 0"
            command = "true" if number % 3 == 0 else touch
            done.append((number, sessions[index].run(command, mode=WORKSPACE_WRITE)))
        return done

    with ThreadPoolExecutor(4) as pool:
        for number, result in itertools.chain(*pool.map(work, range(4))):
            expected = Verdict.NONE if number % 3 == 0 else Verdict.DENIED
            assert facts(result).verdict is expected, (number, result)
            assert len(facts(result).denials) <= 1, result


@on(*LANDLOCK)
def test_a_background_task_that_swallows_its_refusal_is_denied(recorded: Station):
    client = recorded.client
    command = f"(: > {recorded.outside}/x) 2>/dev/null; exit 0"
    task = client.start(command, mode=WORKSPACE_WRITE)
    done = client.wait(task.task_id)
    assert done.exit_code == 0
    assert done.sandbox is not None
    assert done.sandbox.verdict is Verdict.DENIED


@on(*LANDLOCK)
def test_what_a_child_is_refused_later_shows_in_explain(recorded: Station):
    target = f"{recorded.outside}/late"
    fifo = f"{recorded.workspace}/go"
    child = f"read -r < {fifo}; : > {target}"
    result = recorded.run(f"mkfifo {fifo}; ({child}) >/dev/null 2>&1 & disown; exit 0")
    assert facts(result).verdict is Verdict.NONE
    recorded.text(f"echo go > {fifo}")
    deadline = time.monotonic() + 20
    while not (refused := _explained(recorded, result.run_id)["refusals"]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert refused[0]["path"] == f"{recorded.outside}/"
    assert refused[0]["evidence"] == "kernel"


def _explained(station: Station, run_id: str) -> Any:
    done = station.daemon.cli("explain", "--json", run_id)
    return json.loads(done.stdout)


def test_a_task_that_outlives_its_daemon_is_never_called_innocent(
    audit: Audit, make_daemon: DaemonFactory, root_account: Account
):
    daemon = make_daemon(account=root_account, runner="landlock")
    workspace = daemon.make_workspace()
    outside = workspace.parent / "outside"
    outside.mkdir()
    refuse = f"(: > {outside}/x) 2>/dev/null"
    tasks: dict[str, str] = {}
    for name, command in (
        # Refused before the daemon dies, unread; refused after; and never.
        ("before", f"{refuse}; : > begun-before; read -r < before; exit 0"),
        ("after", f": > begun-after; read -r < after; {refuse}; exit 0"),
        ("never", ": > begun-never; read -r < never; exit 0"),
    ):
        os.mkfifo(workspace / name)
        options = ("--background", "--mode", "workspace-write", "--cwd", str(workspace))
        tasks[name] = daemon.cli("run", *options, "--", command).stdout.strip()
    deadline = time.monotonic() + 40
    while not all((workspace / f"begun-{name}").exists() for name in tasks):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    daemon.kill()
    daemon.start_again()
    verdicts: dict[str, str] = {}
    for name, task in tasks.items():
        # Both ends, so that it blocks nobody if the task should be gone.
        fd = os.open(workspace / name, os.O_RDWR)
        os.write(fd, b"go\n")
        daemon.cli("wait", task)
        os.close(fd)
        done = daemon.cli("explain", "--json", task)
        verdicts[name] = json.loads(done.stdout)["verdict"]
    assert verdicts["before"] in ("unknown", "denied")
    assert (verdicts["after"], verdicts["never"]) == ("denied", "unknown")


# -- where the records cannot be trusted --------------------------------------------------

OWN_LAYER = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
attr = (ctypes.c_uint64 * 1)(0x1FF2)  # LANDLOCK_ACCESS_FS_*: what changes files
fd = libc.syscall(444, attr, 8, 0)
assert fd >= 0, os.strerror(ctypes.get_errno())
libc.prctl(38, 1, 0, 0, 0)
assert libc.syscall(446, fd, {flags}) == 0, os.strerror(ctypes.get_errno())
try:
    open({target!r}, "w")
except PermissionError as error:
    if {loud}:
        sys.exit(f"PermissionError: {{error}}")
else:
    sys.exit("not refused")
"""
"""A program that silences the kernel: its own layer refuses first, unrecorded."""


@on(ROOT_LANDLOCK)
@pytest.mark.parametrize("flags", [0, 1, 4, 5])
def test_a_command_cannot_silence_the_kernel_unnoticed(recorded: Station, flags: int):
    target = f"{recorded.outside}/x"
    program = OWN_LAYER.format(flags=flags, target=target, loud=False)
    quiet = recorded.run("python3 -", stdin=program.encode())
    assert quiet.exit_code == 0, quiet
    assert facts(quiet).verdict in (Verdict.UNKNOWN, Verdict.DENIED)

    program = OWN_LAYER.format(flags=flags, target=target, loud=True)
    loud = recorded.run("python3 -", stdin=program.encode())
    assert loud.exit_code == 1, loud
    assert facts(loud).denied is True
    assert refusals(loud)[0][0] == target


@on(ROOT_LANDLOCK)
def test_lost_records_are_never_taken_for_silence(recorded: Station, audit: Audit):
    flood = (
        "import os\n"
        "for _ in range(20000):\n"
        "    try: os.mkdir('/etc/x')\n"
        "    except OSError: pass\n"
    )
    before = audit.get()
    lost = before["lost"]
    # Or whoever causes a record, and we when we put this back, waits for a minute.
    audit.set(backlog_limit=1, backlog_wait=0)
    try:
        flooders = [
            recorded.client.start("python3 -", mode=READ_ONLY, stdin=flood.encode())
            for _ in range(2)
        ]
        verdicts: set[Verdict] = set()
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            result = recorded.run(f"(: > {recorded.outside}/x) 2>/dev/null; exit 0")
            verdicts.add(facts(result).verdict)
            tasks = [recorded.client.get(task.task_id) for task in flooders]
            if all(task is not None and task.exit_code is not None for task in tasks):
                break
    finally:
        audit.set(backlog_limit=BACKLOG, backlog_wait=before["backlog_wait"])
    assert audit.get()["lost"] > lost, "nothing was lost, so nothing was shown"
    assert Verdict.NONE not in verdicts
    # What the flood left, and the notice of the setting, may come during the next one.
    _until(recorded, "true", Verdict.NONE)


@on(ROOT_LANDLOCK)
def test_late_records_are_never_taken_for_silence(recorded: Station, audit: Audit):
    refused = f"(: > {recorded.outside}/x) 2>/dev/null; exit 0"
    with audit.unread():
        late = [recorded.run(refused) for _ in range(5)]
    verdicts = [facts(result).verdict for result in late]
    assert Verdict.NONE not in verdicts
    assert Verdict.UNKNOWN in verdicts, "nothing was late, so nothing was shown"
    _until(recorded, refused, Verdict.DENIED)
    # By now the others have come, too.
    explained = [_explained(recorded, result.run_id)["verdict"] for result in late]
    assert explained == ["denied"] * len(late)


@on(ROOT_LANDLOCK)
def test_a_rule_that_keeps_records_back_is_noticed(recorded: Station, audit: Audit):
    complaint = "echo 'app: Permission denied' >&2; exit 1"
    assert facts(recorded.run(complaint)).verdict is Verdict.NONE
    with audit.excluding(1423):
        _until(recorded, complaint, Verdict.SUSPECTED)
    _until(recorded, complaint, Verdict.NONE)


@on(*LANDLOCK)
def test_audit_may_be_turned_off_and_on_while_the_daemon_runs(
    recorded: Station, audit: Audit
):
    refused = f"touch {recorded.outside}/x"
    assert facts(recorded.run(refused)).verdict is Verdict.DENIED
    audit.set(enabled=0)
    try:
        _until(recorded, refused, Verdict.SUSPECTED)
        # Without records the words of the runner's wall are all there is.
        assert facts(recorded.run("echo 'x: Permission denied' >&2; exit 1")).denied
    finally:
        audit.set(enabled=1)
    _until(recorded, refused, Verdict.DENIED)


def _until(station: Station, command: str, verdict: Verdict) -> None:
    """Run *command* until its verdict is the wanted one: the daemon may lag a little."""
    deadline = time.monotonic() + 20
    while (found := facts(station.run(command)).verdict) is not verdict:
        assert time.monotonic() < deadline, f"still {found} of {shlex.quote(command)}"
