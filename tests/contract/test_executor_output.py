"""I. Output collection, over a real daemon.

The stores' own cases (C158 and C159 among them) are in tests/unit/daemon; here is what
a caller sees of them.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bashd.core.model import ExecRequest, Mode, RunResult, StreamOutput
from tests.support.stations import (
    CONFINING,
    FULL_ACCESS,
    ROOT_BWRAP,
    SERVED_BWRAP,
    SERVED_LANDLOCK,
    USER_BWRAP,
    USER_LANDLOCK,
    WORKSPACE_WRITE,
    Combination,
    Station,
    on,
    station_on,
)

if TYPE_CHECKING:
    from tests.conftest import DaemonFactory
    from tests.support.accounts import Account

OpenStation = Callable[..., Station]
TWO = (USER_LANDLOCK, SERVED_BWRAP)
MIB = 1 << 20


def run_capped(station: Station, command: str, stdout_max_bytes: int) -> RunResult:
    """Run a command with a cap of its own for stdout."""
    spec = station.client.resolve(
        ExecRequest(
            command,
            stdout_max_bytes=stdout_max_bytes,
            sandbox_mode=Mode.WORKSPACE_WRITE,
        )
    )
    return station.client.run(spec)


@on(*TWO)
def test_c153_exactly_the_cap_is_whole(station: Station):
    result = run_capped(station, "head -c 500 /dev/zero | tr '\\0' x", 500)
    assert result.stdout == StreamOutput("x" * 500, bytes=500)


@on(*TWO)
def test_c154_c155_the_tail_is_byte_exact_and_the_file_is_whole(station: Station):
    three = run_capped(station, "printf aaaa; printf bbbbbb; printf cc", 10)
    assert (three.stdout.text, three.stdout.truncated) == ("aabbbbbbcc", True)
    assert three.stdout.bytes == 12
    one = run_capped(station, "printf 0123456789abcdef", 10)
    assert (one.stdout.text, one.stdout.bytes) == ("6789abcdef", 16)
    assert one.stdout.spill_path is not None
    assert Path(one.stdout.spill_path).read_text() == "0123456789abcdef"


NAME = re.compile(r"bashd-\d+-\d+-[0-9a-f]{12}-(stdout|stderr)\.log")


def assert_is_private(result: RunResult, caller: Account) -> None:
    for stream, label in ((result.stdout, "stdout"), (result.stderr, "stderr")):
        assert stream.spill_path is not None
        path = Path(stream.spill_path)
        found = NAME.fullmatch(path.name)
        assert found is not None
        assert found[1] == label
        for place, mode in ((path, 0o600), (path.parent, 0o700)):
            info = place.lstat()
            assert stat.S_IMODE(info.st_mode) == mode, place
            assert (info.st_uid, info.st_gid) == (caller.uid, caller.gid), place


BOTH = "head -c 200000 /dev/zero | tr '\\0' x | tee /dev/stderr"


@pytest.mark.parametrize("who", ["root", "user", "served"])
def test_c156_a_spill_file_is_the_callers_alone_whatever_the_umask_is(
    make_daemon: DaemonFactory,
    ordinary_user: Account,
    request: pytest.FixtureRequest,
    reachable_tmp: Path,
    who: str,
):
    account = ordinary_user
    if who != "user":
        account = request.getfixturevalue("root_account")
    caller = account if who == "root" else ordinary_user
    before = os.umask(0)
    try:
        daemon = make_daemon(account=account, caller=caller, runner="landlock")
    finally:
        os.umask(before)
    with station_on(daemon, reachable_tmp) as station:
        assert_is_private(station.run(BOTH), caller)


@on(*TWO)
def test_c221_an_advertised_path_can_be_read_by_the_next_command(station: Station):
    result = station.run(BOTH)
    for mode in (*CONFINING, FULL_ACCESS):
        for stream in (result.stdout, result.stderr):
            assert stream.truncated
            read = station.text(f"wc -c < {stream.spill_path}", mode)
            assert int(read) == 200_000
    for mode in CONFINING:
        refused = station.run(f"echo x >> {result.stdout.spill_path}", mode)
        assert refused.exit_code == 1, "what was said stays as it was said"
        gone = station.run(f"rm -f {result.stdout.spill_path}", mode)
        assert gone.exit_code == 1


def test_c158_beyond_the_longest_file_nothing_is_advertised(open_station: OpenStation):
    bounds = {"executor": {"max_output_bytes": 1000, "max_spill_bytes": 4000}}
    station = open_station(USER_BWRAP, settings=bounds)
    for length in (5_000, 300_000):
        result = station.run(f"head -c {length} /dev/zero | tr '\\0' x; echo end")
        assert result.stdout.text == "x" * 996 + "end\n"
        assert result.stdout.truncated
        assert result.stdout.spill_path is None
        assert result.stdout.bytes == length + 4
    kept = station.run("head -c 3996 /dev/zero | tr '\\0' x; echo end")
    assert kept.stdout.spill_path is not None


def test_c160_a_larger_cap_is_stdouts_and_of_this_run_only(open_station: OpenStation):
    station = open_station(
        SERVED_LANDLOCK, settings={"executor": {"max_output_bytes": 100}}
    )
    both = "head -c 500 /dev/zero | tr '\\0' x | tee /dev/stderr"
    result = run_capped(station, both, 500)
    assert (result.stdout.truncated, len(result.stdout.text)) == (False, 500)
    assert (result.stderr.truncated, len(result.stderr.text)) == (True, 100)
    assert len(station.run(both).stdout.text) == 100
    spec = station.client.resolve(ExecRequest(both, stdout_max_bytes=500))
    task = station.client.start(spec)
    station.client.wait(task.task_id)
    read = station.client.read_output(task.task_id)
    assert read is not None
    assert read.delta.count("x") <= 500 + 100
    assert "x" * 101 not in read.delta or read.delta.startswith("x" * 500)


@on(*TWO)
def test_c161_what_is_not_utf8_is_replaced(station: Station):
    result = station.run("printf 'a\\377\\303b\\200'; printf '\\303\\244' >&2")
    assert result.stdout.text == "a\ufffd\ufffdb\ufffd"
    assert result.stderr.text == "ä"
    assert result.stdout.bytes == 5


@on(ROOT_BWRAP, USER_BWRAP, USER_LANDLOCK, SERVED_BWRAP, SERVED_LANDLOCK)
def test_c162_standard_error_by_name(station: Station):
    for mode in (*CONFINING, FULL_ACCESS):
        result = station.run("echo x > /dev/stderr", mode)
        assert (result.exit_code, result.stdout.text) == (0, "")
        assert result.stderr.text == "x\n"


@on(*TWO)
def test_i43_more_than_a_pipe_holds_on_both_streams(station: Station):
    result = station.run(
        "head -c 10000000 /dev/zero | tr '\\0' x; echo E;"
        " head -c 10000000 /dev/zero | tr '\\0' y >&2",
        timeout_ms=50_000,
    )
    assert (result.exit_code, result.timed_out) == (0, False)
    assert (result.stdout.bytes, result.stderr.bytes) == (10_000_002, 10_000_000)
    assert result.stdout.text.endswith("xE\n")


def resident_bytes(pid: int) -> int:
    """Return what a process has in memory. Source: proc_pid_statm(5)."""
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


@on(*TWO)
def test_i44_a_flood_costs_the_daemon_no_memory(station: Station):
    station.run("head -c 1000000 /dev/zero")
    before = resident_bytes(station.daemon.pid)
    flood = station.run("head -c 400000000 /dev/zero | tr '\\0' z", timeout_ms=50_000)
    assert (flood.exit_code, flood.stdout.bytes) == (0, 400_000_000)
    assert (flood.stdout.truncated, flood.stdout.spill_path) == (True, None)
    assert len(flood.stdout.text) == 64_000
    grown = resident_bytes(station.daemon.pid) - before
    assert grown < 50 * MIB, f"{grown / MIB:.0f} MiB"


@on(*TWO)
def test_a_background_tasks_output_has_offsets_that_nobody_consumes_twice(
    station: Station,
):
    task = station.client.start(
        "echo one; echo err >&2; until test -e go; do sleep 0.02; done; echo two",
        mode=WORKSPACE_WRITE,
    )
    first = ""
    while first.count("\n") < 3:
        read = station.client.read_output(task.task_id)
        assert read is not None
        first += read.delta
    assert first.replace("\n[stderr]\n", "[stderr]\n").startswith("one")
    assert "[stderr]\nerr\n" in first
    (station.workspace / "go").touch()
    station.client.wait(task.task_id)
    second = station.client.read_output(task.task_id)
    assert second is not None
    assert (second.delta, second.lossy) == ("two\n", False)
    third = station.client.read_output(task.task_id)
    assert third is not None
    assert third.delta == ""


@pytest.mark.parametrize("combination", [USER_BWRAP, SERVED_LANDLOCK], ids="-".join)
def test_bytes_that_were_written_before_the_end_are_never_lost(
    open_station: OpenStation, combination: Combination
):
    # The writer outlives its shell and goes on; what it wrote before is there.
    station = open_station(combination, settings={"executor": {"grace_ms": 200}})
    for _ in range(5):
        result = station.run(
            "head -c 60000 /dev/zero | tr '\\0' x;"
            " (while :; do sleep 0.01; echo more; done) & exit 3"
        )
        assert result.exit_code == 3
        assert result.stdout.text.startswith("x" * 60_000)
