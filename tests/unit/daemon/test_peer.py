"""Who is calling: real processes on real sockets, and the kernel's word on them."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bashd.core.errors import FrameError, NotAllowedError
from bashd.core.model import Mode
from bashd.daemon.access import ConfinedAs
from bashd.daemon.credentials import (
    NO_PIDFD,
    Credentials,
    Standing,
    ask_for_credentials,
    connector_of,
    connector_pidfd,
    groups_of,
    parse_units,
    read_standing,
    receive,
    started_at,
)
from bashd.daemon.identity import Identity
from bashd.daemon.peer import Caller, Exemptions, Senders, judge

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

_NOBODY = 65534
_SPEAK = """
import socket, sys
sock = socket.socket(fileno=int(sys.argv[1]))
for line in sys.stdin:
    sock.send(line.encode())
    print("sent", flush=True)
"""


class Speaker:
    """Another process that holds one end of a connection."""

    def __init__(self, sock: socket.socket, prefix: tuple[str, ...] = ()) -> None:
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-S", "-c", _SPEAK, str(sock.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=[sock.fileno()],
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def say(self, line: str = "hello") -> None:
        """Send one line; returns once it is sent."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "sent\n"

    def end(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


@contextlib.contextmanager
def speaking(sock: socket.socket, *prefix: str) -> Generator[Speaker]:
    speaker = Speaker(sock, prefix)
    try:
        yield speaker
    finally:
        if speaker.process.poll() is None:
            speaker.end()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The daemon's end, stamping credentials, and the client's."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(0)
        ask_for_credentials(ours)
        yield ours, theirs


Pair = tuple[socket.socket, socket.socket]


def no_cells(pid: int, standing: Standing) -> ConfinedAs | None:
    return judge(pid, standing, lambda _: None, Exemptions((), frozenset()))


def senders_of(ours: socket.socket) -> Senders:
    connector = connector_of(ours)
    identity = Identity(connector.uid, connector.gid, groups_of(ours), "me", "/home/me")
    return Senders(connector, identity, no_cells, connector_pidfd(ours))


def hear(ours: socket.socket, senders: Senders, *, old_kernel: bool = False) -> Caller:
    """Receive one chunk and say who sent it, as a connection does."""
    _, credentials, pidfd = receive(ours, 4096)
    if old_kernel and pidfd >= 0:
        os.close(pidfd)
        pidfd = NO_PIDFD
    return senders.caller(credentials, pidfd)


def open_fds() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


# Ordinary callers


def test_the_connector_is_served_with_what_the_kernel_says(pair: Pair):
    ours, theirs = pair
    senders = senders_of(ours)
    theirs.send(b"x")
    caller = hear(ours, senders)
    assert (caller.uid, caller.gid) == (os.getuid(), os.getgid())
    assert set(caller.groups) == set(os.getgroups())
    assert caller.pid == os.getpid()
    assert caller.confined == no_cells(os.getpid(), read_standing(os.getpid()))
    assert (caller.name, caller.home, caller.shell) == ("me", "/home/me", "/bin/sh")
    senders.close()


def test_a_sender_is_judged_once(pair: Pair):
    ours, theirs = pair
    judged: list[int] = []

    def count(pid: int, _standing: Standing) -> None:
        judged.append(pid)

    connector = connector_of(ours)
    identity = Identity(connector.uid, connector.gid, (), "me", "/")
    senders = Senders(connector, identity, count, connector_pidfd(ours))
    first = None
    for _ in range(3):
        theirs.send(b"x")
        caller = hear(ours, senders)
        assert first is None or caller is first
        first = caller
    assert judged == [os.getpid()]
    senders.close()


def test_another_process_on_the_connection_is_seen_as_itself(pair: Pair):
    ours, theirs = pair
    senders = senders_of(ours)
    with speaking(theirs) as speaker:
        theirs.send(b"x")
        speaker.say()
        assert hear(ours, senders).pid == os.getpid()
        assert hear(ours, senders).pid == speaker.pid
    senders.close()


def test_two_senders_are_never_received_as_one(pair: Pair):
    ours, theirs = pair
    with speaking(theirs) as speaker:
        theirs.send(b"mine ")
        speaker.say("theirs")
        chunks = [receive(ours, 4096) for _ in range(2)]
    for _, _, pidfd in chunks:
        if pidfd >= 0:
            os.close(pidfd)
    assert [data for data, _, _ in chunks] == [b"mine ", b"theirs\n"]


# Confined callers


def test_a_process_with_no_new_privs_is_confined_though_the_connector_is_not(
    pair: Pair,
):
    ours, theirs = pair
    senders = senders_of(ours)
    with (
        speaking(theirs) as ordinary,
        speaking(theirs, "setpriv", "--no-new-privs") as confined,
    ):
        ordinary.say()
        assert hear(ours, senders).confined is None
        confined.say()
        assert hear(ours, senders).confined == ConfinedAs(None, None)
    senders.close()


def test_a_cell_names_what_a_confined_process_reaches():
    held = ConfinedAs("s1", Mode.READ_ONLY)
    confined = Standing(no_new_privs=True, groups=())
    none = Exemptions((), frozenset())
    assert judge(1, confined, lambda _: held, none) == held


def test_a_process_without_no_new_privs_is_ordinary_wherever_it_is():
    free = Standing(no_new_privs=False, groups=())
    held = ConfinedAs("s1", Mode.READ_ONLY)
    assert judge(1, free, lambda _: held, Exemptions((), frozenset())) is None


def test_a_listed_unit_is_exempt_unless_the_daemon_is_in_it():
    exemptions = Exemptions(
        ["ci.service", "system.slice"], frozenset({"system.slice", "bashd.service"})
    )
    assert exemptions.cover_units(frozenset({"system.slice", "ci.service"}))
    assert not exemptions.cover_units(frozenset({"system.slice", "other.service"}))
    assert exemptions.ignored == {"system.slice"}


def test_an_exemption_never_widens_a_cell(monkeypatch: pytest.MonkeyPatch):
    exemptions = Exemptions(["ci.service"], frozenset())
    monkeypatch.setattr(exemptions, "cover", lambda _pid: True)
    confined = Standing(no_new_privs=True, groups=())
    held = ConfinedAs("s1", Mode.READ_ONLY)
    assert judge(1, confined, lambda _: None, exemptions) is None
    assert judge(1, confined, lambda _: held, exemptions) == held


@pytest.mark.parametrize(
    ("text", "units"),
    [
        ("0::/system.slice/ci.service/job\n", {"system.slice", "ci.service", "job"}),
        ("0::/\n", set[str]()),
        (
            "3:cpu,cpuacct:/evil.service\n1:name=systemd:/user.slice/a.scope\n0::/\n",
            {"user.slice", "a.scope"},
        ),
    ],
)
def test_units_come_from_the_hierarchy_that_systemd_arranges(
    text: str, units: set[str]
):
    assert parse_units(text) == units


# Senders that are not to be trusted


def test_a_sender_that_has_ended_is_refused(pair: Pair):
    ours, theirs = pair
    senders = senders_of(ours)
    with speaking(theirs) as speaker:
        speaker.say()
        assert hear(ours, senders).pid == speaker.pid  # while it lives, it is served
        speaker.say()
        speaker.end()
        with pytest.raises(NotAllowedError, match="has ended"):
            hear(ours, senders)
    senders.close()


def test_a_sender_that_ends_at_once_is_refused(pair: Pair):
    ours, theirs = pair
    senders = senders_of(ours)
    with speaking(theirs) as speaker:
        speaker.say()
        speaker.end()
        with pytest.raises(NotAllowedError, match="has ended"):
            hear(ours, senders)
    senders.close()


def test_a_sender_that_ends_while_it_is_judged_is_refused(pair: Pair):
    ours, theirs = pair
    connector = connector_of(ours)
    identity = Identity(connector.uid, connector.gid, (), "me", "/")
    with speaking(theirs) as speaker:

        def end_it(_pid: int, _standing: Standing) -> None:
            speaker.end()

        senders = Senders(connector, identity, end_it, connector_pidfd(ours))
        speaker.say()
        with pytest.raises(NotAllowedError, match="has ended"):
            hear(ours, senders)
    senders.close()


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another uid")
def test_another_uid_on_the_connection_is_refused(pair: Pair):
    ours, theirs = pair
    senders = senders_of(ours)
    # Not through an interpreter: this one may lie where nobody else can execute it.
    foreign = subprocess.Popen(
        [
            *("setpriv", f"--reuid={_NOBODY}", "--clear-groups", "--"),
            *("/bin/sh", "-c", "echo hello; read line"),
        ],
        stdin=subprocess.PIPE,
        stdout=theirs.fileno(),
    )
    select.select([ours], [], [])
    with pytest.raises(NotAllowedError, match=f"uid {_NOBODY} speaks on it"):
        hear(ours, senders)
    foreign.communicate()
    senders.close()


def test_a_process_from_elsewhere_is_refused(pair: Pair):
    ours, theirs = pair
    senders = senders_of(ours)
    theirs.send(b"x")
    _, _, pidfd = receive(ours, 16)
    nobody_visible = (0).to_bytes(4, "little") + os.getuid().to_bytes(4, "little") * 2
    with pytest.raises(NotAllowedError, match="not visible"):
        senders.caller(nobody_visible, pidfd)
    senders.close()


def test_descriptors_are_refused_and_closed(pair: Pair):
    ours, theirs = pair
    before = open_fds()
    socket.send_fds(theirs, [b"x"], [0, 1, 2])
    with pytest.raises(FrameError, match="descriptors"):
        receive(ours, 16)
    assert open_fds() == before


def test_a_crowd_of_senders_holds_a_bounded_number_of_descriptors(pair: Pair):
    ours, theirs = pair
    before = open_fds()
    senders = senders_of(ours)
    for _ in range(12):
        with speaking(theirs) as speaker:
            speaker.say()
            assert hear(ours, senders).pid == speaker.pid
    assert open_fds() - before <= 8
    senders.close()
    assert open_fds() == before


# Kernels that send no pidfd


def test_without_pidfds_a_process_older_than_the_connection_is_served():
    with contextlib.ExitStack() as stack:
        ours, theirs = socket.socketpair()
        stack.enter_context(ours)
        stack.enter_context(theirs)
        ask_for_credentials(ours)
        speaker = stack.enter_context(speaking(theirs))
        speaker.say()
        # Its start is counted in ticks, and the connection must be younger than that.
        wait_for_next_tick(speaker.pid)
        identity = Identity(os.getuid(), os.getgid(), (), "me", "/")
        connector = Credentials(os.getpid(), os.getuid(), os.getgid())
        senders = Senders(connector, identity, no_cells)
        assert hear(ours, senders, old_kernel=True).pid == speaker.pid
        senders.close()


def test_without_pidfds_a_younger_process_is_refused(pair: Pair):
    ours, theirs = pair
    identity = Identity(os.getuid(), os.getgid(), (), "me", "/")
    connector = Credentials(os.getpid(), os.getuid(), os.getgid())
    senders = Senders(connector, identity, no_cells)
    wait_for_next_tick(os.getpid(), since=time.clock_gettime(time.CLOCK_BOOTTIME))
    with speaking(theirs) as speaker:
        speaker.say()
        with pytest.raises(NotAllowedError, match="younger"):
            hear(ours, senders, old_kernel=True)
    senders.close()


def wait_for_next_tick(pid: int, since: float | None = None) -> None:
    """Wait until the boot clock is a whole tick past a process's start."""
    start = started_at(pid) if since is None else since
    tick = 1 / os.sysconf("SC_CLK_TCK")
    while time.clock_gettime(time.CLOCK_BOOTTIME) <= start + 2 * tick:
        time.sleep(tick)
