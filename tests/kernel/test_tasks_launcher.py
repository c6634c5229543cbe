"""A launcher that dies takes its tasks with it, says so, and costs nobody else."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from tests.support.callers import client
from tests.support.enclosure import describe
from tests.support.launchers import is_launcher, keepers
from tests.support.trees import KINDS, escapees

if TYPE_CHECKING:
    from tests.support.daemons import RunningDaemon

MODES = ("workspace-write", "danger-full-access")


def wait_for_names(daemon: RunningDaemon, mark: str, count: int) -> None:
    deadline = time.monotonic() + 20
    while True:
        names = [describe(pid).split(" ")[1] for pid in daemon.enclosure.pids()]
        found = [name for name in names if name.startswith(f"{mark}-")]
        if len(found) == count:
            return
        assert time.monotonic() < deadline, f"{len(found)} of {count}: {found}"
        time.sleep(0.02)


@pytest.mark.parametrize("mode", MODES)
def test_tasks_of_a_dead_launcher_end_and_are_marked(
    every_daemon: RunningDaemon, mode: str
):
    daemon = every_daemon
    mark = f"dead-{secrets.token_hex(4)}"
    with client(daemon, cwd=daemon.make_workspace(), mode=mode) as caller:
        task = caller.start(escapees(mark))
        while (now := caller.get(task.task_id)) and now.stdout_bytes < len("made\n"):
            time.sleep(0.02)
        wait_for_names(daemon, mark, len(KINDS))
        (keeper,) = keepers(daemon.enclosure.pids())
        os.kill(keeper, signal.SIGKILL)
        info = caller.wait(task.task_id)
        assert str(info.status) == "killed"
        assert (info.exit_code, info.signal) == (None, None)
        if mode != "danger-full-access":
            assert info.sandbox is not None
            assert info.sandbox.runner_failed
            assert not info.sandbox.denied
        wait_for_names(daemon, mark, 0)
        read = caller.read_output(task.task_id)
        assert read is not None
        assert read.delta == "made\n", "what it had written is kept"
        assert caller.run("echo fresh").stdout.text == "fresh\n"


def test_foreground_run_of_a_dead_launcher_is_a_runner_failure(
    every_daemon: RunningDaemon,
):
    daemon = every_daemon
    workspace = daemon.make_workspace()
    mark = f"dead-{secrets.token_hex(4)}"
    command = f"exec -a {mark}-only sleep 600"
    run = subprocess.Popen(
        daemon.caller_argv("run", "--cwd", str(workspace), "--", command),
        env=daemon.caller_env(),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    with run:
        wait_for_names(daemon, mark, 1)
        (keeper,) = keepers(daemon.enclosure.pids())
        os.kill(keeper, signal.SIGKILL)
        _, said = run.communicate(timeout=20)
    assert run.returncode == 125, said
    wait_for_names(daemon, mark, 0)
    assert daemon.run("echo fresh", cwd=workspace)["stdout"]["text"] == "fresh\n"


def test_other_sessions_do_not_notice(every_daemon: RunningDaemon):
    daemon = every_daemon
    workspace = daemon.make_workspace()
    with (
        client(daemon, cwd=workspace) as first,
        client(daemon, cwd=workspace) as second,
    ):
        victim = first.start("sleep 600")
        first.run("true")
        before = set(keepers(daemon.enclosure.pids()))
        spared = second.start("sleep 600")
        second.run("true")
        for keeper in before:
            os.kill(keeper, signal.SIGKILL)
        assert str(first.wait(victim.task_id).status) == "killed"
        info = second.get(spared.task_id)
        assert info is not None
        assert str(info.status) == "running"
        assert second.run("echo fine").stdout.text == "fine\n"


def test_zygote_that_is_killed_costs_nothing(every_daemon: RunningDaemon):
    daemon = every_daemon
    with client(daemon, cwd=daemon.make_workspace()) as caller:
        task = caller.start("sleep 600")
        caller.run("true")
        (keeper,) = keepers(daemon.enclosure.pids())
        launchers = [p for p in daemon.enclosure.pids() if is_launcher(p)]
        for pid in launchers:
            if pid != keeper:
                # The zygote, and the spares that wait.
                os.kill(pid, signal.SIGKILL)
        for number in range(5):
            assert caller.run(f"echo {number}").stdout.text == f"{number}\n"
        info = caller.get(task.task_id)
        assert info is not None
        assert str(info.status) == "running"
