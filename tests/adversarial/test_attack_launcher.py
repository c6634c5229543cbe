"""Goal: read, steer or end what runs the commands, or anything outside the cell.

The targets are the daemon, the cell's launcher, its waiting children and an outsider
of the same uid; all were started by these tests. Signals do reach the waiting children
of the attacker's own cell: what must hold is that the next command runs all the same.
"""

from __future__ import annotations

import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.accounts import argv_as
from tests.support.enclosure import describe
from tests.support.launchers import is_launcher, keepers
from tests.support.stations import (
    CONFINING,
    FULL_ACCESS,
    SERVED_LANDLOCK,
    UNDER_BWRAP,
    USER_LANDLOCK,
    WORKSPACE_WRITE,
    Station,
    on,
    sys_python,
)

INTRUDER = Path(__file__).with_name("intruder.py")
OUTSIDER = """
import ctypes, sys
ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_long(-1), 0, 0, 0)  # for Yama: anyone
print("ready", flush=True)
sys.stdin.read()
"""


@contextmanager
def outsider(station: Station) -> Generator[int]:
    """Start an unconfined process of the caller's uid; return its pid."""
    process = subprocess.Popen(
        argv_as(station.caller, [sys_python(), "-c", OUTSIDER]),
        env=station.environ | {"CANARY": "outsider"},
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process.pid
    finally:
        process.kill()
        process.communicate()


def intrude(
    station: Station, verbs: str, pids: list[int], mode: str
) -> dict[str, list[int]]:
    """Attack from inside a command; without *pids* all that can be seen there."""
    return station.program(INTRUDER, verbs, *pids, mode=mode)


def launchers(station: Station) -> dict[int, str]:
    """Return the processes of all cells on this daemon that are no command.

    Bubblewrap itself, which waits outside of the cell, is not one of them.
    """
    pids = station.daemon.enclosure.pids()
    return {pid: describe(pid) for pid in pids if is_launcher(pid)}


def state(pid: int) -> str:
    """Return the letter of a process's state; empty when there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[0]


def assert_runs_as_before(station: Station, mode: str) -> None:
    """More commands than there can be spares, one after the other."""
    for number in range(6):
        result = station.run(f"echo {number}", mode, timeout_ms=10_000)
        assert (result.exit_code, result.stdout.text) == (0, f"{number}\n"), result


def test_everything_works_on_an_outsider_without_walls(station: Station):
    with outsider(station) as pid:
        read = intrude(station, "read", [pid], FULL_ACCESS)
        assert set(read) == {
            *("trace", "process_vm_readv", "mem for reading", "mem for writing"),
            *("environ", "pidfd_getfd", "fd", "root", "prlimit", "prlimit to look"),
        }
        assert intrude(station, "stop", [pid], FULL_ACCESS) == {"SIGSTOP": [pid]}
        assert state(pid) == "T"
        assert intrude(station, "end", [pid], FULL_ACCESS) == {"SIGKILL": [pid]}
        assert state(pid) in ("Z", "")


@pytest.mark.parametrize("mode", CONFINING)
def test_no_process_can_be_read_or_steered(station: Station, mode: str):
    station.run("true", mode)
    with outsider(station) as pid:
        targets = [*launchers(station), station.daemon.pid, pid]
        assert len(targets) >= 4, "keeper, zygote and spares are there"
        assert intrude(station, "read", targets, mode) == {}
        if station.under_bwrap:
            # The same processes under the numbers they have in the cell, and no others.
            assert intrude(station, "read", [], mode) == {}
    assert_runs_as_before(station, mode)


@pytest.mark.parametrize("mode", CONFINING)
def test_no_signal_leaves_the_cell_and_the_next_command_runs(
    station: Station, mode: str
):
    station.run("true", mode)
    daemon = station.daemon
    with outsider(station) as pid:
        before = launchers(station)
        targets = [*before, daemon.pid, pid]
        for verbs in ("stop", "signal"):
            permitted = intrude(station, verbs, targets, mode)
            if station.under_bwrap:
                assert permitted == {}, "host pids mean nothing in the cell"
                intrude(station, verbs, [], mode)
            else:
                hit = {pid for found in permitted.values() for pid in found}
                assert not hit & {daemon.pid, pid}
            assert state(daemon.pid) in "SR"
            assert state(pid) in "SR"
            assert_runs_as_before(station, mode)
        # A cell ends with its keeper: it is the same one.
        assert set(before) & set(launchers(station))
    assert not [pid for pid in launchers(station) if state(pid) == "T"]


@pytest.mark.parametrize("verbs", ["stop", "signal"])
def test_the_keeper_outlives_what_its_commands_send(station: Station, verbs: str):
    station.run("true")
    before = keepers_of(station)
    assert before
    intrude(station, verbs, [] if station.under_bwrap else before, WORKSPACE_WRITE)
    assert_runs_as_before(station, WORKSPACE_WRITE)
    assert keepers_of(station) == before


def keepers_of(station: Station) -> list[int]:
    """Return the cells' first processes."""
    return sorted(keepers(station.daemon.enclosure.pids()))


@on(*UNDER_BWRAP, USER_LANDLOCK, SERVED_LANDLOCK)
def test_killing_everybody_takes_the_own_session_at_most(station: Station):
    # Never as root without a namespace of its own: if the scope did not hold, this
    # would end the machine and not the test.
    if not station.under_bwrap and not station.caller.name.startswith("bashd-t-"):
        pytest.skip("would end the developer's own processes if the scope did not hold")
    host = Path("/proc/self/ns/pid").readlink()
    guard = f'[ "$(readlink /proc/self/ns/pid)" != "{host}" ] &&'
    command = f"{guard if station.under_bwrap else ''} kill -KILL -1; echo alive"
    other = station.open(mode=WORKSPACE_WRITE)
    survivor = other.start("sleep 600.25")
    own = station.client.start("touch begun; sleep 600.75", mode=WORKSPACE_WRITE)
    # One that is killed before it begins is started again: nothing of it had run.
    station.run("until [ -e begun ]; do sleep 0.01; done")
    with outsider(station) as pid:
        assert station.run(command).stdout.text == "alive\n"
        assert station.client.wait(own.task_id).signal == "SIGKILL"
        assert state(pid) in "SR"
    assert_runs_as_before(station, WORKSPACE_WRITE)
    its_tasks = other.list(session_id=other.session.session_id)
    assert [task.status for task in its_tasks] == ["running"]
    assert len(station.processes("sleep 600.25")) >= 1
    assert other.kill(survivor.task_id)


def test_a_command_that_keeps_stopping_its_cell_is_ended_by_its_own_timeout(
    station: Station,
):
    loop = "while :; do kill -STOP $(ls /proc | grep '^[0-9]*$' | grep -vx $$); done"
    if not station.under_bwrap:
        # Only what is this daemon's: the numbers are the host's.
        pids = " ".join(str(pid) for pid in launchers(station))
        loop = f"while :; do kill -STOP {pids}; done"
    result = station.run(f"{{ {loop}; }} 2>/dev/null", timeout_ms=300)
    assert result.timed_out
    assert_runs_as_before(station, WORKSPACE_WRITE)


def test_the_launcher_is_not_dumpable_and_ignores_signals(station: Station):
    station.run("true")
    for pid in launchers(station):
        folder = Path(f"/proc/{pid}")
        status = dict(
            line.split(":\t", 1)
            for line in (folder / "status").read_text().splitlines()
            if ":\t" in line
        )
        # proc(5): files of a process that is not dumpable belong to root.
        assert (folder / "environ").stat().st_uid == 0
        caught = int(status["SigIgn"], 16) | int(status["SigCgt"], 16)
        for number in (1, 2, 3, 10, 12, 13, 14, 15):
            assert caught & 1 << (number - 1), f"{pid} would die of signal {number}"
