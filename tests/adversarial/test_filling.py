"""Goal: fill what others need: the disk, its inodes, the memory behind /tmp.

What bounds processes, memory and processors is tested with the control groups, what
bounds output with the store, and what happens when a disk is full among the faults.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bashd.core.confinement import LANDLOCK_GAPS
from tests.adversarial.attack import with_policies
from tests.benchmarks.machine import pss_bytes
from tests.support.stations import (
    ALL,
    CONFINING,
    FULL_ACCESS,
    READ_ONLY,
    UNDER_BWRAP,
    UNDER_LANDLOCK,
    Combination,
    Station,
    on,
)
from tests.support.waiting import eventually

MIB = 1024 * 1024
TASKS = 20
MOST_OUTPUT = 64 * MIB
SMALL_STORE = {
    "limits": {"session_output_bytes": MOST_OUTPUT, "output_bytes": 2 * MOST_OUTPUT}
}
SLACK = 16 * MIB
"""What is written between two looks, and folders, logs and records beside it."""


def test_no_file_grows_beyond_the_policys_limit(station: Station):
    session = with_policies(
        station, small=f'mode = "workspace-write"\nlimits.file_size_bytes = {MIB}\n'
    )
    ways = (
        "fallocate -l 3M {}",
        "head -c 3M /dev/zero > {}",
        "truncate -s 3M {}",
        "head -c 3M /dev/zero | dd bs=1M of={} 2>/dev/null",
        "python3 -c 'import os, sys; os.posix_fallocate(os.open(sys.argv[1], 66), 0,"
        " 3 << 20)' {}",
    )
    places = [str(station.workspace), "$TMPDIR"]
    if station.under_bwrap:
        places += ["/dev/shm", "/var/tmp"]
    size = "; stat -c %s {} 2>/dev/null || echo 0; rm -f {}"
    for way in ways:
        for place in places:
            file = f"{place}/big"
            command = (way + size).replace("{}", file)
            free = station.run(command, FULL_ACCESS).stdout.text.split()
            assert int(free[-1]) == 3 * MIB, (way, place)
            got = session.run(command, policy="small").stdout.text.split()
            assert int(got[-1]) <= MIB, (way, place)
    assert session.run("echo fine", policy="small").stdout.text == "fine\n"


@on(*UNDER_BWRAP)
def test_a_folder_in_memory_holds_what_the_policy_allows(station: Station):
    session = with_policies(
        station, small=f'mode = "workspace-write"\nlimits.shm_bytes = {4 * MIB}\n'
    )
    fill = (
        "for n in $(seq 8); do head -c 1M /dev/zero > /dev/shm/$n || break; done;"
        " du -sm /dev/shm | cut -f 1"
    )
    assert station.text(fill) == "8\n"
    assert session.run(fill, policy="small").stdout.text == "4\n"
    assert (
        session.run("rm /dev/shm/*; echo x > /dev/shm/x", policy="small").exit_code == 0
    )


@on(*UNDER_BWRAP)
def test_a_shipped_bound_on_memory_is_less_than_the_machines(station: Station):
    size = "echo $(($(stat -f -c '%b * %S' /dev/shm)))"
    for mode in CONFINING:
        assert station.text(size, mode) == f"{2 * 1024 * MIB}\n"


@on(*UNDER_LANDLOCK)
def test_the_folder_in_memory_is_the_hosts_and_that_is_a_gap(station: Station):
    result = station.run("stat -f -c '%b %S' /dev/shm")
    assert result.stdout.text == station.text(
        "stat -f -c '%b %S' /dev/shm", FULL_ACCESS
    )
    assert result.sandbox is not None
    assert result.sandbox.enforcement == "partial"
    assert any("/dev/shm" in gap for gap in LANDLOCK_GAPS)


def test_a_shipped_limit_is_less_than_a_disk(station: Station):
    refused = station.run("fallocate -l 1T big; truncate -s 1T big")
    assert refused.exit_code != 0
    big = station.workspace / "big"
    assert not big.exists() or big.stat().st_size < 2**40
    assert station.text("echo fine") == "fine\n"


def test_thousands_of_files_go_with_their_session(station: Station):
    make = (
        "cd $TMPDIR && mkdir -p a/b/c && cd a/b/c && seq 4000 | xargs touch"
        " && ls | wc -l && pwd -P"
    )
    other = station.open()
    made = other.run(make, mode="workspace-write").stdout.text.split()
    assert made[0] == "4000"
    session_id = other.session.session_id
    folders = [p for p in held(station, session_id) if p.name == "c"]
    assert folders, "they are in the session's own folder"
    other.sessions.close(session_id)
    assert held(station, session_id) == []
    assert station.text("echo fine") == "fine\n"


def held(station: Station, session_id: str) -> list[Path]:
    """Return the folders that are kept for a session."""
    return [
        path
        for path in station.daemon.state_dir.rglob("*")
        if session_id in path.parts and path.is_dir()
    ]


@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(2, id="brief"),
        pytest.param(
            600, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(900)]
        ),
    ],
)
@pytest.mark.parametrize("combination", ALL, ids="-".join)
def test_e51_floods_of_one_session_cost_neither_disk_nor_memory_nor_others(
    open_station: Callable[..., Station], combination: Combination, seconds: float
):
    station = open_station(combination, settings=SMALL_STORE)
    other = station.open()
    kept = other.run("seq 20000", mode=READ_ONLY).stdout.spill_path
    assert kept is not None
    tasks = [station.client.start("yes | tr -d '\\n'") for _ in range(TASKS)]
    eventually(lambda: all(t.stdout_bytes for t in station.client.list()), "output")
    memory = pss_bytes(station.daemon.pid)
    latencies: list[float] = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert used_bytes(station.daemon.state_dir) < MOST_OUTPUT + SLACK
        began = time.monotonic()
        assert other.run("echo fine", mode=READ_ONLY).stdout.text == "fine\n"
        latencies.append(time.monotonic() - began)
        time.sleep(0.05)
    assert sorted(latencies)[len(latencies) // 2] < 1, latencies
    assert pss_bytes(station.daemon.pid) - memory < 20 * MIB
    assert {str(task.status) for task in station.client.list()} == {"running"}
    written = sum(task.stdout_bytes for task in station.client.list())
    assert written > 2 * MOST_OUTPUT, "it was a flood"
    # What another session has to read is not given up for it.
    assert Path(kept).read_text().endswith("20000\n")
    for task in tasks:
        station.client.kill(task.task_id)
    for task in tasks:
        station.client.wait(task.task_id)


def used_bytes(folder: Path) -> int:
    """Return what everything below a folder takes on its disk."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.lstat().st_blocks * 512
        except OSError:
            continue
    return total
