"""News of a finished task reaches its session exactly once, whoever was away."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from bashd.core.model import ExecRequest
from tests.support.callers import client

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bashd.client import SyncClient
    from bashd.core.model import TaskInfo
    from tests.support.daemons import RunningDaemon


def start(caller: SyncClient, command: str) -> str:
    """Start a task that its session owns."""
    owner = caller.session.session_id
    request = ExecRequest(command, workdir=caller.session.cwd, owner=owner)
    return caller.start(caller.resolve(request)).task_id


def facts(tasks: Iterable[TaskInfo]) -> dict[str, Any]:
    return {task.task_id: (str(task.status), task.exit_code) for task in tasks}


def taken(daemon: RunningDaemon, session_id: str) -> dict[str, Any]:
    """Come back to a session and take its news."""
    with client(daemon, cwd=None, session=session_id) as caller:
        return facts(caller.take_notices())


def test_completions_while_no_client_was_there(every_daemon: RunningDaemon):
    daemon = every_daemon
    workspace = daemon.make_workspace()
    with client(daemon, cwd=workspace) as caller:
        session_id = caller.session.session_id
        ids = [start(caller, f"sleep 0.5; exit {number}") for number in range(4)]
    for number, task_id in enumerate(ids):
        assert daemon.cli("wait", task_id).returncode == number
    expected = {i: ("completed", n) for n, i in enumerate(ids)}
    assert taken(daemon, session_id) == expected
    assert taken(daemon, session_id) == {}


def test_completions_while_no_daemon_was_there(every_daemon: RunningDaemon):
    daemon = every_daemon
    workspace = daemon.make_workspace()
    with client(daemon, cwd=workspace) as caller:
        session_id = caller.session.session_id
        before = start(caller, "exit 3")
        caller.wait(before)
        assert facts(caller.take_notices()) == {before: ("completed", 3)}
        kept = start(caller, "true")
        caller.wait(kept)
        during = start(caller, "echo begun; sleep 1; exit 4")
        after = start(caller, "echo begun; sleep 6; exit 5")
        for task_id in (during, after):
            while not _bytes(caller, task_id):
                time.sleep(0.02)
    daemon.kill()
    time.sleep(1.5)
    daemon.start_again()
    assert daemon.cli("wait", during).returncode == 4
    expected = {kept: ("completed", 0), during: ("completed", 4)}
    assert taken(daemon, session_id) == expected
    daemon.kill()
    daemon.start_again()
    assert daemon.cli("wait", after).returncode == 5
    assert taken(daemon, session_id) == {after: ("completed", 5)}
    assert taken(daemon, session_id) == {}


def test_task_that_never_ran_is_told_once_as_well(every_daemon: RunningDaemon):
    daemon = every_daemon
    workspace = daemon.make_workspace()
    with client(daemon, cwd=workspace) as caller:
        owner = caller.session.session_id
        request = ExecRequest("true", workdir=f"{workspace}/missing", owner=owner)
        task_id = caller.start(caller.resolve(request)).task_id
        caller.wait(task_id)
        assert facts(caller.take_notices()) == {task_id: ("killed", None)}
        assert caller.take_notices() == []


def _bytes(caller: SyncClient, task_id: str) -> int:
    found = caller.get(task_id)
    return 0 if found is None else found.stdout_bytes
