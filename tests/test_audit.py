"""The audit log end to end: who ran what, and nobody changes it unseen."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import DaemonFactory
from tests.support.accounts import Account
from tests.support.daemons import RunningDaemon

Start = Callable[..., RunningDaemon]


@pytest.fixture
def start(make_daemon: DaemonFactory, root_account: Account) -> Start:
    """Start a daemon of root's with settings of ``[audit]``."""

    def start(**audit: object) -> RunningDaemon:
        settings = {"audit": audit} if audit else None
        return make_daemon(account=root_account, runner="landlock", settings=settings)

    return start


def log_of(daemon: RunningDaemon) -> Path:
    return daemon.state_dir / "audit.jsonl"


def stop_and_read(daemon: RunningDaemon) -> list[dict[str, Any]]:
    daemon.stop()
    return [json.loads(line) for line in log_of(daemon).read_text().splitlines()]


def of(entries: list[dict[str, Any]], event: str) -> list[dict[str, Any]]:
    return [entry for entry in entries if entry["event"] == event]


def verify(daemon: RunningDaemon, path: Path | None = None) -> tuple[int, Any]:
    words = ("--file", str(path or log_of(daemon)), "--json")
    done = daemon.cli("audit", "verify", *words)
    return done.returncode, json.loads(done.stdout)


def test_every_run_has_a_line_that_says_who_what_and_how(start: Start):
    daemon = start()
    workspace = daemon.make_workspace()
    result = daemon.run("echo hello; touch /etc/zz", cwd=workspace, mode="read-only")
    failed = daemon.run("true", cwd=workspace, options=("--policy", "nosuch"))
    assert "error" in failed
    entries = stop_and_read(daemon)
    assert [entry["event"] for entry in entries][:1] == ["daemon.start"]
    assert entries[-1]["event"] == "daemon.stop"
    (run,) = of(entries, "run")
    assert run["run_id"] == result["run_id"]
    assert (run["uid"], run["user"], run["asked_by"] > 0) == (0, "root", True)
    assert run["session"].startswith("s-")
    assert (run["mode"], run["policy"], run["runner"]) == (
        *("read-only", "read-only"),
        "landlock",
    )
    assert run["command"] == "echo hello; touch /etc/zz"
    assert len(run["command_sha256"]) == 64
    assert (run["exit_code"], run["signal"], run["ended_by"]) == (1, None, None)
    assert run["denials"][0][:2] == ["create", "/etc/zz"]
    assert (run["stdout_bytes"], run["stderr_bytes"] > 0) == (6, True)
    assert run["wall_ms"] >= 0
    assert run["max_rss_bytes"] > 0
    assert verify(daemon)[0] == 0


def test_what_runs_for_a_while_has_a_line_for_its_start(start: Start):
    daemon = start()
    workspace = daemon.make_workspace()
    daemon.run("sleep 0.5; exit 3", cwd=workspace)
    task = daemon.cli("run", "--background", "--cwd", str(workspace), "sleep 60")
    task_id = task.stdout.strip()
    daemon.cli("kill", task_id)
    daemon.cli("wait", task_id)
    entries = stop_and_read(daemon)
    (short,) = [e for e in of(entries, "start") if e["command"].startswith("sleep 0.5")]
    ends = {e["run_id"]: e for e in of(entries, "run")}
    assert ends[short["run_id"]]["exit_code"] == 3
    (killed,) = of(entries, "task.kill")
    assert (killed["task_id"], killed["killed"]) == (task_id, True)
    (ended,) = [e for e in ends.values() if e["task_id"] == task_id]
    assert ended["ended_by"] == "kill"


def test_sessions_and_their_modes_have_lines(start: Start):
    daemon = start()
    workspace = daemon.make_workspace()
    opened = daemon.cli("session", "open", "--cwd", str(workspace), "--json")
    session = json.loads(opened.stdout)["session_id"]
    daemon.cli("session", "mode", session, "workspace-write")
    daemon.cli("session", "close", session)
    entries = stop_and_read(daemon)
    (line,) = [e for e in of(entries, "session.open") if e["session"] == session]
    assert (line["cwd"], line["user"]) == (str(workspace), "root")
    (line,) = of(entries, "session.set_mode")
    assert (line["session"], line["mode"]) == (session, "workspace-write")
    (line,) = of(entries, "session.close")
    assert line["session"] == session


def test_the_text_of_commands_can_be_left_out(start: Start):
    daemon = start(command_text=False)
    workspace = daemon.make_workspace()
    daemon.run("echo canary", cwd=workspace)
    stop_and_read(daemon)
    text = log_of(daemon).read_text()
    assert "canary" not in text
    assert '"command_sha256"' in text


def test_it_can_be_turned_off(start: Start):
    daemon = start(enabled=False)
    workspace = daemon.make_workspace()
    daemon.run("true", cwd=workspace)
    daemon.stop()
    assert not log_of(daemon).exists()


def test_files_are_rotated_and_stay_one_chain(start: Start):
    daemon = start(rotate_bytes=3000, keep_files=2)
    workspace = daemon.make_workspace()
    for number in range(12):
        daemon.run(f"echo {number}", cwd=workspace)
    daemon.stop()
    files = sorted(log_of(daemon).parent.glob("audit.jsonl*"))
    assert [f.name for f in files] == [
        *("audit.jsonl", "audit.jsonl.1", "audit.jsonl.2"),
        "audit.jsonl.head",
    ]
    status, found = verify(daemon)
    assert (status, found["ok"], found["first"] > 1) == (0, True, True)
    shown = daemon.cli("audit", "show", "--file", str(log_of(daemon)), "-n", "3")
    assert shown.stdout.count("\n") == 4
    assert "daemon.stop" in shown.stdout


def test_a_daemon_that_was_killed_leaves_a_chain_that_goes_on(start: Start):
    daemon = start()
    workspace = daemon.make_workspace()
    daemon.run("sleep 0.3", cwd=workspace)
    daemon.kill()
    daemon.start_again()
    daemon.run("true", cwd=workspace)
    daemon.stop()
    assert verify(daemon)[0] == 0


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (lambda lines: [*lines[:3], *lines[4:]], "missing before it"),
        (lambda lines: lines[:-1], "last 1 line is missing"),
        (lambda lines: lines[1:], "oldest lines are missing"),
        (lambda lines: [*lines[:2], lines[3], lines[2], *lines[4:]], "missing before"),
        (
            lambda lines: [line.replace(b"echo 2", b"echo 9") for line in lines],
            "altered",
        ),
        (lambda lines: [*lines, lines[-1]], "written twice"),
    ],
    ids=["removed", "end cut off", "beginning cut off", "moved", "altered", "doubled"],
)
def test_verify_finds_what_was_done_to_a_line(
    start: Start,
    tmp_path: Path,
    damage: Callable[[list[bytes]], list[bytes]],
    what: str,
):
    daemon = start()
    workspace = daemon.make_workspace()
    for number in range(5):
        daemon.run(f"echo {number}", cwd=workspace)
    daemon.stop()
    copy = tmp_path / "audit.jsonl"
    lines = log_of(daemon).read_bytes().splitlines(keepends=True)
    head = copy.with_name("audit.jsonl.head")
    head.write_text(log_of(daemon).with_name("audit.jsonl.head").read_text())
    copy.write_bytes(b"".join(lines))
    assert verify(daemon, copy)[0] == 0
    copy.write_bytes(b"".join(damage(lines)))
    status, found = verify(daemon, copy)
    assert status == 1
    assert what in found["problems"][0]["what"]


def test_a_confined_command_cannot_see_it(start: Start):
    daemon = start()
    workspace = daemon.make_workspace()
    daemon.run("true", cwd=workspace)
    for mode in ("read-only", "workspace-write"):
        result = daemon.run(f"cat {log_of(daemon)}", cwd=workspace, mode=mode)
        assert result["exit_code"] == 1
        assert result["stdout"]["text"] == ""


def test_commands_run_on_when_it_cannot_be_written(start: Start, reachable_tmp: Path):
    path = reachable_tmp / "no" / "such" / "folder" / "audit.jsonl"
    daemon = start(path=str(path))
    workspace = daemon.make_workspace()
    for _ in range(3):
        assert daemon.run("sleep 0.2", cwd=workspace)["exit_code"] == 0
    assert daemon.log.count("the audit log cannot be written") == 1
