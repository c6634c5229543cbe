"""Goal: have the daemon take me for somebody who may do more.

A confined process, another user, and whoever was handed somebody's connection, against
a real daemon. Each attack is first shown to work for a caller who may.
"""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.accounts import Account, argv_as

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import DaemonFactory
    from tests.support.daemons import RunningDaemon

# Says what it is told to on a connection of its own, or on one it was handed, and
# prints the answers. Runs as anybody, on any Python.
_CALLER = """
import json, os, socket, sys
how, path, requests = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
if how == "handed":
    # The connector is an ordinary process; who speaks is its child, confined.
    import ctypes
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(path)
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        sys.exit(os.waitstatus_to_exitcode(status))
    assert ctypes.CDLL(None).prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
else:
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.connect(path)
    except PermissionError as error:
        print(json.dumps({"refused": error.strerror}))
        sys.exit(0)
lines = sock.makefile()
for number, (method, params) in enumerate(requests):
    message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
    try:
        sock.sendall(json.dumps(message).encode() + b"\\n")
        print(lines.readline(), end="", flush=True)
    except (BrokenPipeError, ConnectionResetError):
        break
"""


def speak(
    account: Account,
    daemon: RunningDaemon,
    *requests: tuple[str, dict[str, Any]],
    how: str = "own",
    confined: bool = False,
) -> list[dict[str, Any]]:
    """Make requests as *account*, after initialize; return the answers to them."""
    wanted = [("initialize", {"protocol": 1}), *requests]
    prefix = ["setpriv", "--no-new-privs"] if confined else []
    python = [daemon.install.python, "-I", "-c", _CALLER]
    arguments = [how, str(daemon.socket), json.dumps(wanted)]
    done = subprocess.run(
        argv_as(account, [*prefix, *python, *arguments]),
        env=account.environment(),
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def code(answer: dict[str, Any]) -> str | None:
    return answer["error"]["data"]["code"] if "error" in answer else None


@pytest.fixture
def daemon(
    make_daemon: DaemonFactory, root_account: Account, ordinary_user: Account
) -> RunningDaemon:
    """A daemon of root's whose group is an ordinary user's own."""
    return make_daemon(account=root_account, caller=ordinary_user)


@pytest.fixture
def workspace(daemon: RunningDaemon, request: pytest.FixtureRequest) -> Path:
    """A folder of the ordinary user's."""
    return daemon.make_workspace(f"callers-{abs(hash(request.node.name))}")


def run_in(workspace: Path, command: str) -> tuple[str, dict[str, Any]]:
    return "exec.run", {
        "command": command,
        "cwd": str(workspace),
        "mode": "danger-full-access",
    }


def test_each_caller_is_served_as_itself(
    daemon: RunningDaemon, workspace: Path, ordinary_user: Account
):
    _, answer = speak(ordinary_user, daemon, run_in(workspace, "id -u; id -G; pwd"))
    uid, groups, cwd = answer["result"]["stdout"]["text"].splitlines()
    assert uid == str(ordinary_user.uid)
    assert groups == str(ordinary_user.gid)
    assert cwd == str(workspace)


def test_a_confined_process_gets_nothing_but_the_daemons_status(
    daemon: RunningDaemon, workspace: Path, ordinary_user: Account
):
    attack = run_in(workspace, "touch reached")
    _, allowed = speak(ordinary_user, daemon, attack)
    assert allowed["result"]["exit_code"] == 0
    (workspace / "reached").unlink()

    _, run, listed, status = speak(
        *(ordinary_user, daemon, attack, ("session.list", {}), ("daemon.status", {})),
        confined=True,
    )
    assert code(run) == "NOT_ALLOWED"
    assert "no_new_privs" in run["error"]["message"]
    assert code(listed) == "NOT_ALLOWED"
    assert status["result"]["pid"] == daemon.pid
    assert not (workspace / "reached").exists()
    assert f"uid {ordinary_user.uid}" in daemon.log
    assert "refused to pid" in daemon.log


def test_a_connection_that_was_handed_to_a_confined_process_is_a_confined_ones(
    daemon: RunningDaemon, workspace: Path, ordinary_user: Account
):
    attack = run_in(workspace, "touch reached")
    _, run = speak(ordinary_user, daemon, attack, how="handed")
    assert code(run) == "NOT_ALLOWED"
    assert not (workspace / "reached").exists()


def test_a_user_outside_the_group_cannot_even_connect(
    daemon: RunningDaemon, second_user: Account
):
    (answer,) = speak(second_user, daemon, ("daemon.status", {}))
    assert answer == {"refused": os.strerror(13)}


def test_a_user_outside_the_group_who_got_to_the_socket_is_refused(
    daemon: RunningDaemon, second_user: Account, ordinary_user: Account
):
    # As if somebody had loosened the modes: the second line.
    daemon.socket.parent.chmod(0o755)
    daemon.socket.chmod(0o666)
    (answer,) = speak(second_user, daemon, ("daemon.status", {}))
    assert code(answer) == "NOT_ALLOWED"
    assert f"uid {second_user.uid} is not in the group" in answer["error"]["message"]
    assert len(speak(ordinary_user, daemon, ("daemon.status", {}))) == 2


def test_sessions_and_tasks_of_another_user_do_not_exist(
    daemon: RunningDaemon,
    workspace: Path,
    ordinary_user: Account,
    root_account: Account,
):
    opened = ("session.open", {"cwd": str(workspace)})
    _, answer = speak(ordinary_user, daemon, opened)
    session = answer["result"]["session_id"]
    start = ("exec.start", {"command": "sleep 60", "session_id": session})
    look = ("session.get", {"session_id": session})
    _, started, seen = speak(ordinary_user, daemon, start, look)
    assert code(seen) is None
    task = {"task_id": started["result"]["task_id"]}

    _, foreign, killed, fetched = speak(
        root_account, daemon, look, ("task.kill", task), ("task.get", task)
    )
    assert code(foreign) == "UNKNOWN_SESSION"
    assert code(killed) == "UNKNOWN_TASK"
    assert fetched["result"] == {"task": None}
    _, running = speak(ordinary_user, daemon, ("task.get", task))
    assert running["result"]["task"]["status"] == "running"


def test_a_users_own_daemon_serves_not_even_root(
    make_daemon: DaemonFactory, root_account: Account, ordinary_user: Account
):
    daemon = make_daemon(account=ordinary_user)
    assert len(speak(ordinary_user, daemon, ("daemon.status", {}))) == 2
    (answer,) = speak(root_account, daemon, ("daemon.status", {}))
    assert code(answer) == "NOT_ALLOWED"
    assert f"serves uid {ordinary_user.uid} only" in answer["error"]["message"]
