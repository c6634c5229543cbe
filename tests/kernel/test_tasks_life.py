"""A task's life: stdin, deadline, kills in every state, sessions and their tasks."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from tests.support.callers import client
from tests.support.stations import Station

if TYPE_CHECKING:
    from tests.support.daemons import RunningDaemon


def test_stdin_given_to_a_task_is_read_to_its_end(station: Station):
    data = b"".join(b"%d\n" % n for n in range(50_000))
    task = station.client.start("wc -c; exit 3", stdin=data)
    assert station.client.wait(task.task_id).exit_code == 3
    read = station.client.read_output(task.task_id)
    assert read is not None
    assert read.delta.strip() == str(len(data))


def test_task_that_does_not_read_its_stdin_reports_its_own_status(station: Station):
    task = station.client.start("exit 7", stdin=b"x" * 1_000_000)
    assert station.client.wait(task.task_id).exit_code == 7


def test_stdin_of_a_task_from_the_command_line(station: Station):
    words = ("run", "--background", "--stdin", "--cwd", str(station.workspace))
    started = station.daemon.cli(
        *words, "--", "sort -r", stdin="a\nb\n", env=station.environ
    )
    task_id = started.stdout.strip()
    assert station.daemon.cli("wait", task_id, env=station.environ).returncode == 0
    logs = station.daemon.cli("logs", task_id, env=station.environ)
    assert logs.stdout == "b\na\n"


def test_task_without_stdin_is_at_its_end(station: Station):
    task = station.client.start("cat; read x; echo rc=$?; test -c /dev/stdin")
    info = station.client.wait(task.task_id)
    read = station.client.read_output(task.task_id)
    assert read is not None
    assert (read.delta, info.exit_code) == ("rc=1\n", 0)


def test_deadline_ends_a_task_and_no_deadline_does_not(station: Station):
    bounded = station.client.start("echo before; sleep 600", deadline_ms=700)
    free = station.client.start("sleep 600")
    began = time.monotonic()
    info = station.client.wait(bounded.task_id)
    assert time.monotonic() - began < 10
    assert (str(info.status), info.signal) == ("killed", "SIGTERM")
    read = station.client.read_output(bounded.task_id)
    assert read is not None
    assert read.delta == "before\n"
    still = station.client.get(free.task_id)
    assert still is not None
    assert str(still.status) == "running"


def test_deadline_from_the_command_line_survives_the_daemon(
    every_daemon: RunningDaemon,
):
    daemon = every_daemon
    workspace = daemon.make_workspace()
    words = ("run", "--background", "--timeout", "4", "--cwd", str(workspace))
    task_id = daemon.cli(*words, "--", "echo begun; sleep 600").stdout.strip()
    while daemon.cli("logs", task_id).stdout != "begun\n":
        time.sleep(0.05)
    daemon.kill()
    daemon.start_again()
    began = time.monotonic()
    waited = daemon.cli("wait", task_id)
    assert waited.returncode in (124, 128 + 15), waited
    assert time.monotonic() - began < 15


def test_kill_is_said_at_once_and_the_signal_when_it_is_known(station: Station):
    task = station.client.start("trap '' TERM; echo deaf; while :; do sleep 0.1; done")
    while True:
        found = station.client.get(task.task_id)
        assert found is not None
        if found.stdout_bytes:
            break
        time.sleep(0.02)
    assert station.client.kill(task.task_id)
    flipped = station.client.get(task.task_id)
    assert flipped is not None
    assert (str(flipped.status), flipped.signal) == ("killed", None)
    assert not station.client.kill(task.task_id)
    settled = station.client.wait(task.task_id)
    assert (str(settled.status), settled.signal) == ("killed", "SIGKILL")


def test_task_killed_before_it_began_never_runs(station: Station):
    other = station.open()
    # The first command of a session: its cell is still being built.
    task = other.start("touch ran", mode="workspace-write")
    other.kill(task.task_id)
    info = other.wait(task.task_id)
    assert str(info.status) == "killed"
    other.run("true")
    assert not (station.workspace / "ran").exists()


def test_signal_death_of_its_own_is_killed_and_named(station: Station):
    task = station.client.start("kill -USR1 $$; sleep 5")
    info = station.client.wait(task.task_id)
    assert (str(info.status), info.exit_code, info.signal) == (
        "killed",
        None,
        "SIGUSR1",
    )


def test_kill_that_was_begun_is_finished_by_the_next_daemon(
    every_daemon: RunningDaemon,
):
    daemon = every_daemon
    workspace = daemon.make_workspace()
    with client(daemon, cwd=workspace) as caller:
        task = caller.start("trap '' TERM; echo deaf; while :; do sleep 0.1; done")
        while not _bytes_of(daemon, task.task_id):
            time.sleep(0.05)
        assert caller.kill(task.task_id)
    daemon.kill()
    daemon.start_again()
    waited = daemon.cli("wait", task.task_id, timeout_s=40)
    assert waited.returncode == 128 + 9, waited
    (listed,) = json.loads(daemon.cli("ps", "--all", "--json").stdout)["tasks"]
    assert (listed["status"], listed["signal"]) == ("killed", "SIGKILL")


def test_clean_stop_ends_tasks_and_the_next_daemon_lists_none(
    every_daemon: RunningDaemon,
):
    daemon = every_daemon
    workspace = daemon.make_workspace()
    with client(daemon, cwd=workspace) as caller:
        session_id = caller.session.session_id
        caller.start("sleep 600")
        caller.wait(caller.start("true").task_id)
    daemon.process.terminate()
    assert daemon.process.wait(30) == 0
    assert not daemon.enclosure.pids()
    daemon.start_again()
    listed = json.loads(daemon.cli("ps", "--all", "--json").stdout)["tasks"]
    assert listed == []
    with client(daemon, cwd=None, session=session_id) as caller:
        # The session is known by its id; its numbers go on.
        assert caller.start("true").task_id == "bash-3"


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_output_of_both_streams_is_kept_apart(station: Station, stream: str):
    task = station.client.start("for i in 1 2 3; do echo o$i; echo e$i >&2; done")
    station.client.wait(task.task_id)
    option = () if stream == "stdout" else ("--stderr",)
    logs = station.daemon.cli("logs", task.task_id, *option, env=station.environ)
    assert logs.stdout == "".join(
        f"{'o' if stream == 'stdout' else 'e'}{i}\n" for i in (1, 2, 3)
    )


def _bytes_of(daemon: RunningDaemon, task_id: str) -> int:
    listed = json.loads(daemon.cli("ps", "--all", "--json").stdout)["tasks"]
    return next(t["stdout_bytes"] for t in listed if t["task_id"] == task_id)
