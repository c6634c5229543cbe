"""Sessions that nobody uses any more are closed, and everything of theirs goes."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bashd.client import connect_sync

if TYPE_CHECKING:
    from tests.conftest import DaemonFactory
    from tests.support.accounts import Account
    from tests.support.daemons import RunningDaemon

pytestmark = pytest.mark.slow

IDLE_S = 4
"""Longer than a start of the command line takes on a machine that is busy."""


@pytest.fixture
def daemon(make_daemon: DaemonFactory, root_account: Account) -> RunningDaemon:
    times: dict[str, object] = {
        "idle_timeout_s": IDLE_S,
        "default_idle_timeout_s": IDLE_S,
    }
    return make_daemon(account=root_account, settings={"sessions": times})


@pytest.fixture
def workspace(daemon: RunningDaemon) -> Path:
    return daemon.make_workspace()


def open_session(daemon: RunningDaemon, workspace: Path) -> str:
    words = ("session", "open", "--cwd", str(workspace), "--mode", "workspace-write")
    return daemon.cli(*words).stdout.strip()


def listed(daemon: RunningDaemon) -> dict[str, dict[str, Any]]:
    done = daemon.cli("session", "list", "--json")
    return {s["session_id"]: s for s in json.loads(done.stdout)["sessions"]}


def folders(daemon: RunningDaemon) -> list[str]:
    return [path.name for path in (daemon.state_dir / "sessions").iterdir()]


def wait_until_closed(daemon: RunningDaemon, session: str) -> None:
    while session in listed(daemon):
        time.sleep(0.1)


def test_an_idle_session_goes_with_all_of_it(
    daemon: RunningDaemon, workspace: Path
) -> None:
    session = open_session(daemon, workspace)
    run = ("run", "--session", session, "--")
    daemon.cli(*run, "echo x > /tmp/scratch; sleep 600 > /dev/null 2>&1 &")
    task = daemon.cli("run", "--background", "--session", session, "--", "seq 99999")
    assert daemon.cli("wait", task.stdout.strip()).returncode == 0
    wait_until_closed(daemon, session)
    while session in folders(daemon):
        time.sleep(0.1)
    late = daemon.cli(*run, "true")
    assert late.returncode == 125
    assert "unknown session" in late.stderr
    assert "unknown bash task" in daemon.cli("logs", task.stdout.strip()).stderr
    assert not [p for p in daemon.enclosure.pids() if is_sleep(p)]


def is_sleep(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text() == "sleep\n"
    except OSError:
        return False


def test_a_default_session_goes_too(daemon: RunningDaemon, workspace: Path) -> None:
    assert daemon.run("echo x > /tmp/f", cwd=workspace)["exit_code"] == 0
    (session,) = listed(daemon)
    wait_until_closed(daemon, session)
    assert daemon.run("cat /tmp/f", cwd=workspace)["exit_code"] == 1


def test_a_running_task_and_a_connection_keep_theirs_open(
    daemon: RunningDaemon, workspace: Path
) -> None:
    busy = open_session(daemon, workspace)
    start = ("run", "--background", "--session", busy, "--", "sleep 600")
    task = daemon.cli(*start).stdout.strip()
    with connect_sync(str(daemon.socket), cwd=str(workspace)) as client:
        held = client.session.session_id
        # One that was opened later has come and gone.
        wait_until_closed(daemon, open_session(daemon, workspace))
        assert {busy, held} <= listed(daemon).keys()
        assert client.run("echo there").stdout.text == "there\n"
    daemon.cli("kill", task)
    wait_until_closed(daemon, busy)
    wait_until_closed(daemon, held)
