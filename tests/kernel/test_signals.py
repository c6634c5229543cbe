"""Signals: exact statuses, grace, whole trees, and nothing that a command inherits."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.support.stations import (
    FULL_ACCESS,
    SERVED_LANDLOCK,
    USER_BWRAP,
    WORKSPACE_WRITE,
    Station,
    on,
)

OpenStation = Callable[..., Station]
SHORT_GRACE = {"executor": {"grace_ms": 300}}


@pytest.fixture(params=[USER_BWRAP, SERVED_LANDLOCK], ids="-".join)
def hasty(request: pytest.FixtureRequest, open_station: OpenStation) -> Station:
    """A station whose daemon has a short grace."""
    return open_station(request.param, settings=SHORT_GRACE)


def wait_until_gone(station: Station, mark: str, within_s: float = 5) -> None:
    """Wait until no process has *mark* in its command line."""
    deadline = time.monotonic() + within_s
    while left := station.processes(mark):
        assert time.monotonic() < deadline, left
        time.sleep(0.01)


def test_an_exit_status_is_the_kernels_own(station: Station):
    for mode in (WORKSPACE_WRITE, FULL_ACCESS):
        for name in ("TERM", "KILL", "INT", "HUP", "USR1", "SEGV", "RTMIN+3"):
            result = station.run(f"kill -{name} $$", mode)
            assert (result.exit_code, result.signal) == (None, f"SIG{name}"), result
            assert (result.timed_out, result.aborted) == (False, False)
        for status in (0, 1, 7, 126, 127, 137, 143, 255):
            result = station.run(f"exit {status}", mode)
            assert (result.exit_code, result.signal) == (status, None), result


def test_a_command_inherits_no_disposition_and_no_mask(station: Station):
    for mode in (WORKSPACE_WRITE, FULL_ACCESS):
        # /proc/self would be the reader's; of bash's own handlers only CHLD is there.
        seen = station.text("grep -E '^Sig(Ign|Blk|Pnd)|^ShdPnd' /proc/$$/status", mode)
        masks = [int(line.split(":")[1], 16) for line in seen.splitlines()]
        assert masks == [0, 0, 0, 0], seen
        closed = station.text("yes | head -1; echo ${PIPESTATUS[0]}", mode)
        assert closed == "y\n141\n", "SIGPIPE ends a writer"


def test_a_command_leads_a_session_of_its_own_without_a_terminal(station: Station):
    seen = station.text("echo $$; cat /proc/$$/stat")
    pid, stat = seen.split("\n", 1)
    fields = stat.rpartition(")")[2].split()
    group, session, terminal = fields[2], fields[3], fields[4]
    assert (group, session, terminal) == (pid, pid, "0")


def test_a_trap_gets_its_grace(hasty: Station):
    started = time.monotonic()
    result = hasty.run(
        "trap 'echo cleaned; exit 5' TERM; echo ready; sleep 600 & wait",
        timeout_ms=300,
    )
    assert result.timed_out
    assert (result.exit_code, result.signal) == (5, None)
    assert result.stdout.text == "ready\ncleaned\n"
    assert time.monotonic() - started < 10


def test_i39_what_ignores_term_is_killed_after_the_grace(hasty: Station):
    result = hasty.run(
        "trap '' TERM INT HUP; echo ready; while :; do sleep 0.05; done", timeout_ms=200
    )
    assert (result.timed_out, result.aborted) == (True, False)
    assert (result.exit_code, result.signal) == (None, "SIGKILL")
    assert result.usage.wall_ms >= 500
    assert result.stdout.text == "ready\n"


def test_descendants_that_ignore_term_go_although_their_leader_went_at_once(
    hasty: Station,
):
    mark = f"sleep 600.{hasty.folder.name[-4:].translate(HEX)}1"
    result = hasty.run(
        f"(trap '' TERM; setsid bash -c \"trap '' TERM; {mark}\" & {mark}; :) &"
        f" exec {mark}",
        timeout_ms=300,
    )
    assert result.timed_out
    assert result.signal == "SIGTERM"
    wait_until_gone(hasty, mark)


def test_i30_a_timeout_ends_the_whole_pipeline(station: Station):
    mark = f"600.{station.folder.name[-4:].translate(HEX)}2"
    result = station.run(
        f"mkfifo p; (while :; do echo child; sleep {mark}; done) > p & cat p",
        timeout_ms=400,
    )
    assert result.timed_out
    assert result.stdout.text == "child\n"
    wait_until_gone(station, mark)


def test_i45_what_was_said_before_a_timeout_is_kept(station: Station):
    result = station.run("echo before; echo more >&2; sleep 600", timeout_ms=300)
    assert result.timed_out
    assert (result.stdout.text, result.stderr.text) == ("before\n", "more\n")


@on(USER_BWRAP, SERVED_LANDLOCK)
def test_a_later_call_can_signal_a_task_of_its_own_session(station: Station):
    task = station.client.start(
        "trap 'echo told; exit 3' USR1; echo $$ > pid; while :; do sleep 0.05; done",
        mode=WORKSPACE_WRITE,
    )
    waited = station.run("until test -s pid; do sleep 0.01; done", timeout_ms=10_000)
    assert waited.exit_code == 0
    assert station.run("kill -USR1 $(cat pid)").exit_code == 0
    assert station.client.wait(task.task_id).exit_code == 3
    read = station.client.read_output(task.task_id)
    assert read is not None
    assert read.delta == "told\n"


HEX = str.maketrans("abcdef", "012345")
"""A folder's random name, as digits that `sleep` takes."""
