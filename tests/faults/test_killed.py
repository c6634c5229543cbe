"""kill -9 of the daemon, a launcher or a client at random moments, under load.

The seed of the moments is in the test's name, so that a failure can be had again.
"""

from __future__ import annotations

import base64
import os
import random
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from bashd.protocol.messages import TaskLogsParams
from tests.faults.load import names_left, start_load
from tests.support.callers import client
from tests.support.enclosure import describe
from tests.support.launchers import keepers
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from bashd.client import SyncClient
    from tests.conftest import DaemonFactory
    from tests.support.accounts import Account
    from tests.support.daemons import RunningDaemon

SMALL = pytest.param((24, 20), marks=pytest.mark.timeout(240))
MANY = [pytest.mark.soak, pytest.mark.timeout(900)]
LARGE = pytest.param((200, 60), marks=MANY)
FEW = pytest.param(6, marks=pytest.mark.timeout(240))
SEEDS = (1, pytest.param(2, marks=pytest.mark.soak))


@pytest.mark.parametrize("size", [SMALL, LARGE], ids=["24", "200"])
@pytest.mark.parametrize("seed", SEEDS)
def test_daemon_killed_over_and_over_loses_and_repeats_nothing(
    every_daemon: RunningDaemon, size: tuple[int, int], seed: int
):
    _kill_over_and_over(every_daemon, *size, seed)


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "daemon_matrix",
    [("root", "bwrap"), ("user", "landlock")],
    ids="-".join,
    indirect=True,
)
def test_200_tasks_outlive_their_daemon_over_and_over(daemon_matrix: RunningDaemon):
    _kill_over_and_over(daemon_matrix, 200, 30, seed=3)


def _kill_over_and_over(
    daemon: RunningDaemon, count: int, lines: int, seed: int
) -> None:
    moments = random.Random(seed)
    workspace = daemon.make_workspace()
    load = start_load(daemon, workspace, count=count, lines=lines, pause_s=0.1)
    # Each of them runs by then; what had no process yet would rightly be lost.
    eventually(
        lambda: all(task["stdout_bytes"] for task in load.listed()), "first lines"
    )
    for _ in range(4):
        time.sleep(moments.uniform(0, 1.5))
        daemon.kill()
        time.sleep(moments.uniform(0, 0.5))
        daemon.start_again()
    load.check_survivors(load.wait_until_settled())
    eventually(
        lambda: not names_left(daemon.enclosure.pids(), describe), "the end of all"
    )
    assert daemon.run("echo fresh", cwd=workspace)["stdout"]["text"] == "fresh\n"


def test_a_flood_goes_on_over_kills_without_a_byte_more_or_less(
    daemon_matrix: RunningDaemon,
):
    daemon, moments = daemon_matrix, random.Random(11)
    workspace = daemon.make_workspace()
    last = 250_000_000
    whole = sum(9 * 10**d * (d + 2) for d in range(8)) + (last - 10**8 + 1) * 10
    with client(daemon, cwd=workspace) as caller:
        session = caller.session.session_id
        # Both streams, one of them slow: each is handed over with what it has.
        both = (
            f"for i in 1 2 3 4 5; do echo $i >&2; sleep .2; done & seq 1 {last}; wait"
        )
        task = caller.start(both).task_id
    for _ in range(5):
        time.sleep(moments.uniform(0.05, 0.2))
        daemon.kill()
        daemon.start_again()
    with client(daemon, cwd=None, session=session) as caller:
        (info,) = [one for one in caller.list() if one.task_id == task]
        assert info.stdout_bytes < whole, "it was over before the last kill"
        settled = caller.wait(task)
        assert settled.exit_code == 0
        assert (settled.stdout_bytes, settled.stderr_bytes) == (whole, 10)
        found = caller.read_log(TaskLogsParams(task, offset=whole - 10_000))
    expected = "".join(f"{n}\n" for n in range(last - 999, last + 1))
    assert base64.b64decode(found.data_b64).decode() == expected


def test_daemon_killed_while_it_adopts(daemon_matrix: RunningDaemon):
    daemon, moments = daemon_matrix, random.Random(7)
    workspace = daemon.make_workspace()
    load = start_load(daemon, workspace, count=8, lines=60, pause_s=0.1)
    eventually(
        lambda: all(task["stdout_bytes"] for task in load.listed()), "first lines"
    )
    for _ in range(4):
        daemon.kill()
        daemon.start_again()
        time.sleep(moments.uniform(0, 0.3))
    load.check_survivors(load.wait_until_settled())


def test_reads_go_on_where_they_were_over_a_kill(daemon_matrix: RunningDaemon):
    daemon = daemon_matrix
    workspace = daemon.make_workspace()
    load = start_load(daemon, workspace, count=1, lines=80, pause_s=0.03)
    (task_id,) = load.task_ids
    read: list[str] = []
    for _ in range(3):
        with client(daemon, cwd=None, session=load.session_id) as caller:
            for _ in range(5):
                found = caller.read_output(task_id)
                assert found is not None
                read.append(found.delta)
                time.sleep(0.05)
        daemon.kill()
        daemon.start_again()
    load.wait_until_settled()
    with client(daemon, cwd=None, session=load.session_id) as caller:
        found = caller.read_output(task_id)
        assert found is not None
        read.append(found.delta)
    numbers = [
        line for delta in read for line in delta.splitlines() if line.startswith("0:")
    ]
    assert numbers == [f"0:{number}" for number in range(1, 81)]


@pytest.mark.slow
def test_tasks_whose_cell_was_being_built_are_settled_and_leave_nothing(
    daemon_matrix: RunningDaemon,
):
    daemon, moments = daemon_matrix, random.Random(5)
    workspace = daemon.make_workspace()
    daemon.run("true", cwd=workspace)
    for _ in range(4):
        with client(daemon, cwd=workspace) as caller:
            # A session of its own, so its cell is made now: in some 100 ms.
            ids = [caller.start("echo ran; sleep 600").task_id for _ in range(3)]
            session_id = caller.session.session_id
            time.sleep(moments.uniform(0, 0.15))
            daemon.kill()
        daemon.start_again()
        with client(daemon, cwd=None, session=session_id) as caller:
            for task_id in ids:
                # It runs, or was settled; its first line may still be in its pipe.
                eventually(lambda: _has_shown_itself(caller, task_id), task_id)  # noqa: B023
                caller.kill(task_id)
                info = caller.wait(task_id)
                assert str(info.status) == "killed", info
                assert info.exit_code is None
            assert [task.task_id for task in caller.list()] == ids
            assert caller.run("echo fresh").stdout.text == "fresh\n"
            caller.sessions.close(session_id)
    eventually(
        lambda: not names_left(daemon.enclosure.pids(), describe), "the end of all"
    )
    eventually(
        lambda: daemon.enclosure.cgroups() <= {"bashd"}, "the end of their groups"
    )


def _has_shown_itself(caller: SyncClient, task_id: str) -> bool:
    info = caller.get(task_id)
    assert info is not None
    return str(info.status) != "running" or info.stdout_bytes > 0


def test_exits_while_no_daemon_was_there_are_told(daemon_matrix: RunningDaemon):
    daemon = daemon_matrix
    workspace = daemon.make_workspace()
    load = start_load(daemon, workspace, count=8, lines=2, pause_s=0.8)
    eventually(
        lambda: all(task["stdout_bytes"] for task in load.listed()), "first lines"
    )
    daemon.kill()
    eventually(lambda: not names_left(daemon.enclosure.pids(), describe), "their end")
    daemon.start_again()
    load.check_survivors(load.wait_until_settled())


def test_orphans_end_when_nobody_comes(make_daemon: DaemonFactory, identity: Account):
    daemon = make_daemon(
        account=identity,
        runner="landlock",
        settings={"daemon": {"orphan_timeout_s": 1.5}},
    )
    workspace = daemon.make_workspace()
    load = start_load(daemon, workspace, count=3, lines=1, pause_s=600)
    eventually(
        lambda: all(task["stdout_bytes"] for task in load.listed()), "first lines"
    )
    daemon.kill()
    began = time.monotonic()
    eventually(lambda: not daemon.enclosure.pids(), "the end of the orphans", 20)
    assert time.monotonic() - began > 1
    daemon.start_again()
    for task in load.wait_until_settled(20):
        assert (task["status"], task["exit_code"]) == ("killed", None)
        load.check_beginning(task)


def test_orphans_whose_keeper_died_too_are_ended_by_the_next_daemon(
    every_daemon: RunningDaemon,
):
    daemon = every_daemon
    workspace = daemon.make_workspace()
    load = start_load(daemon, workspace, count=3, lines=1, pause_s=600)
    eventually(
        lambda: all(task["stdout_bytes"] for task in load.listed()), "first lines"
    )
    launchers = keepers(daemon.enclosure.pids())
    daemon.kill()
    for pid in launchers:
        os.kill(pid, signal.SIGKILL)
    daemon.start_again()
    for task in load.wait_until_settled(20):
        assert task["status"] == "killed"
        load.check_beginning(task)
    eventually(lambda: not names_left(daemon.enclosure.pids(), describe), "their end")


@pytest.mark.parametrize("count", [FEW, pytest.param(67, marks=MANY)])
@pytest.mark.parametrize("seed", SEEDS)
def test_launchers_killed_at_random_cost_their_own_tasks_only(
    daemon_matrix: RunningDaemon, seed: int, count: int
):
    daemon, moments = daemon_matrix, random.Random(seed)
    workspace = daemon.make_workspace()
    loads = [
        start_load(daemon, workspace, count=count, lines=30, pause_s=0.1)
        for _ in range(3)
    ]
    for load in loads:
        eventually(lambda: all(t["stdout_bytes"] for t in load.listed()), "lines")  # noqa: B023
    for _ in range(2):
        time.sleep(moments.uniform(0, 0.5))
        os.kill(
            moments.choice(sorted(keepers(daemon.enclosure.pids()))), signal.SIGKILL
        )
    ended = [load.wait_until_settled() for load in loads]
    statuses = [{task["status"] for task in tasks} for tasks in ended]
    assert statuses.count({"completed"}) >= 1, statuses
    for load, tasks in zip(loads, ended, strict=True):
        for task in tasks:
            if task["status"] == "completed":
                load.check_survivor(task)
            else:
                load.check_beginning(task)
    eventually(
        lambda: not names_left(daemon.enclosure.pids(), describe), "the end of all"
    )
    assert daemon.run("echo fresh", cwd=workspace)["stdout"]["text"] == "fresh\n"


@pytest.mark.parametrize("count", [FEW, pytest.param(200, marks=MANY)])
@pytest.mark.parametrize("seed", SEEDS)
def test_clients_killed_at_random_take_their_commands_and_nobody_elses(
    daemon_matrix: RunningDaemon, seed: int, count: int
):
    daemon, moments = daemon_matrix, random.Random(seed)
    workspace = daemon.make_workspace()
    load = start_load(daemon, workspace, count=count, lines=40, pause_s=0.1)
    clients = [
        subprocess.Popen(
            daemon.caller_argv(
                *("run", "--cwd", str(workspace), "--"),
                "while :; do echo x; sleep 0.05; done",
            ),
            env=daemon.caller_env(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for _ in range(8)
    ]
    for process in clients:
        time.sleep(moments.uniform(0, 0.4))
        process.kill()
        process.wait()
    load.check_survivors(load.wait_until_settled())
    eventually(
        lambda: not names_left(daemon.enclosure.pids(), describe), "the end of all"
    )
