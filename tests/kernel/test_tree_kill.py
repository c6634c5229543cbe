"""A command's whole tree ends with it, however its processes tried to get away.

On both runners, as root, as an ordinary user and for a user served by root; root's
daemons once with cgroups and once without.
"""

from __future__ import annotations

import secrets
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.stations import ALL, FULL_ACCESS, WORKSPACE_WRITE, Station
from tests.support.trees import KINDS, escapees, hidden, named, names, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.stations import Combination

GRACE_S = 0.4
SOON = {"executor": {"grace_ms": GRACE_S * 1000}}
WITHOUT = {**SOON, "daemon": {"cgroups": False}}


@pytest.fixture(
    params=[
        *((combination, SOON) for combination in ALL),
        # A user's daemon has no cgroups on most machines anyway.
        *((c, WITHOUT) for c in ALL if c[0] != "user"),
    ],
    ids=lambda param: "-".join(param[0]) + ("" if param[1] is SOON else "-no-cgroups"),
)
def place(
    request: pytest.FixtureRequest, open_station: Callable[..., Station]
) -> Station:
    """A station where grace is short."""
    combination: Combination
    combination, settings = request.param
    return open_station(combination, settings=settings)


@pytest.fixture
def mark() -> str:
    """Name for the processes of one test."""
    return f"tree-{secrets.token_hex(4)}"


def is_exact(station: Station) -> bool:
    """Whether the daemon has a cgroup for each command."""
    return any("bashd/" in name for name in station.daemon.enclosure.cgroups())


def start_escapees(station: Station, mark: str, mode: str = WORKSPACE_WRITE) -> str:
    """Start a task that makes them all; return its id once they are there."""
    task = station.client.start(escapees(mark), mode=mode)
    wait_for(station, mark, len(KINDS))
    return task.task_id


def test_killed_task_leaves_no_process(place: Station, mark: str):
    task_id = start_escapees(place, mark)
    assert place.client.kill(task_id)
    assert str(place.client.wait(task_id).status) == "killed"
    wait_for(place, mark, 0)


def test_timed_out_command_leaves_no_process(place: Station, mark: str):
    result = place.run(escapees(mark), timeout_ms=1500)
    assert result.timed_out
    assert "made\n" in result.stdout.text, "the escapees were not made in time"
    wait_for(place, mark, 0)


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGKILL], ids=["cancelled", "client-killed"]
)
def test_command_whose_client_goes_leaves_no_process(
    place: Station, mark: str, number: signal.Signals
):
    client = subprocess.Popen(
        place.daemon.caller_argv(
            *("run", "--session", place.client.session.session_id),
            *("--mode", WORKSPACE_WRITE, "--", escapees(mark)),
        ),
        env=place.environ,
        cwd=place.workspace,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(place, mark, len(KINDS))
    finally:
        client.send_signal(number)
        status = client.wait(20)
    assert status == (130 if number is signal.SIGINT else -signal.SIGKILL)
    wait_for(place, mark, 0)


def test_closed_session_leaves_no_process(place: Station, mark: str):
    other = place.open()
    other.start(escapees(mark), mode=WORKSPACE_WRITE)
    wait_for(place, mark, len(KINDS))
    other.sessions.close(other.session.session_id)
    assert names(place, mark) == []


def test_unconfined_tree_ends_too(place: Station, mark: str):
    task_id = start_escapees(place, mark, FULL_ACCESS)
    assert place.client.kill(task_id)
    wait_for(place, mark, 0)


def test_what_hid_its_descent_ends_with_the_kill_or_with_the_session(
    place: Station, mark: str
):
    other = place.open()
    task = other.start(f"{hidden(mark)}; sleep 600", mode=WORKSPACE_WRITE)
    wait_for(place, mark, 1)
    assert other.kill(task.task_id)
    other.wait(task.task_id)
    if is_exact(place):
        wait_for(place, mark, 0)
    other.sessions.close(other.session.session_id)
    assert names(place, mark) == []


def test_unconfined_process_that_hid_ends_with_the_session(place: Station, mark: str):
    other = place.open()
    task = other.start(f"{hidden(mark)}; sleep 600", mode=FULL_ACCESS)
    wait_for(place, mark, 1)
    other.kill(task.task_id)
    other.wait(task.task_id)
    other.sessions.close(other.session.session_id)
    assert names(place, mark) == []


def test_kill_spares_the_neighbours(place: Station, mark: str):
    neighbour = place.client.start(
        f"exec -a {mark}-neighbour sleep 600", mode=WORKSPACE_WRITE
    )
    wait_for(place, mark, 1)
    task_id = place.client.start(escapees(mark), mode=WORKSPACE_WRITE).task_id
    wait_for(place, mark, 1 + len(KINDS))
    place.client.kill(task_id)
    wait_for(place, mark, 1)
    info = place.client.get(neighbour.task_id)
    assert info is not None
    assert str(info.status) == "running"
    assert place.text("echo still here") == "still here\n"


def test_process_that_was_stopped_before_stays_stopped(place: Station, mark: str):
    stopped = place.client.start(
        f"( exec -a {mark}-paused sleep 600 ) & sleep 0.2; kill -STOP $!; wait",
        mode=WORKSPACE_WRITE,
    )
    wait_for(place, mark, 1)
    victim = place.client.start("sleep 600", mode=WORKSPACE_WRITE)
    time.sleep(0.3)
    place.client.kill(victim.task_id)
    place.client.wait(victim.task_id)
    time.sleep(GRACE_S + 0.2)
    stat = Path(f"/proc/{named(place)[f'{mark}-paused']}/stat").read_text()
    assert stat.rpartition(")")[2].split()[0] == "T"
    place.client.kill(stopped.task_id)
