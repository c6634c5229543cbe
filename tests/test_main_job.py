"""The main job, end to end: real daemon, real cells, the command line as people use it.

On each runner, as root and as an ordinary user, and for a user served by root.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager

from tests.support.daemons import RunningDaemon

Leaks = Callable[..., AbstractContextManager[None]]


def text(result: dict[str, object], stream: str = "stdout") -> str:
    kept = result[stream]
    assert isinstance(kept, dict), result
    return str(kept["text"])


def test_the_main_job(every_daemon: RunningDaemon, leaks: Leaks):
    daemon = every_daemon
    workspace = daemon.make_workspace()
    outside = workspace.parent / f"{workspace.name}-outside"

    written = daemon.run("echo one > note", cwd=workspace, mode="workspace-write")
    assert written["exit_code"] == 0, text(written, "stderr")
    assert (workspace / "note").read_text() == "one\n"
    owner = (workspace / "note").stat()
    assert (owner.st_uid, owner.st_gid) == (daemon.caller.uid, daemon.caller.gid)

    refused = daemon.run("echo two >> note", cwd=workspace, mode="read-only")
    assert refused["exit_code"] == 1
    assert refused["sandbox"]["denied"] is True
    assert refused["sandbox"]["mode"] == "read-only"
    assert refused["sandbox"]["runner"] == daemon.runner
    assert (workspace / "note").read_text() == "one\n"

    beside = daemon.run(f"echo two > {outside}", cwd=workspace, mode="workspace-write")
    assert beside["exit_code"] == 1
    assert beside["sandbox"]["denied"] is True
    assert not outside.exists()

    wide = daemon.run(f"echo two > {outside}", cwd=workspace, mode="danger-full-access")
    assert wide["exit_code"] == 0, text(wide, "stderr")
    assert outside.read_text() == "two\n"
    outside.unlink()

    scrubbed = daemon.run(
        "echo ${DEMO_API_TOKEN-gone} ${DEMO_PLAIN-gone}",
        cwd=workspace,
        env={"DEMO_API_TOKEN": "canary", "DEMO_PLAIN": "here"},
    )
    assert text(scrubbed) == "gone here\n"
    assert "DEMO_API_TOKEN" in scrubbed["env_removed"]

    with leaks(daemon):
        for _ in range(3):
            assert daemon.run("true", cwd=workspace)["exit_code"] == 0


def test_markers_and_statuses_of_the_plain_command_line(every_daemon: RunningDaemon):
    daemon = every_daemon
    workspace = daemon.make_workspace()
    options = ("run", "--cwd", str(workspace))
    refused = daemon.cli(*options, "--mode", "read-only", "--", "echo x > f")
    assert refused.returncode == 1
    assert "[sandbox: file access denied under read-only mode]" in refused.stderr
    assert daemon.cli(*options, "--", "exit 7").returncode == 7
    assert daemon.cli(*options, "--", "kill -TERM $$").returncode == 128 + 15
    timed_out = daemon.cli(*options, "--timeout", "0.2", "--", "sleep 60")
    assert timed_out.returncode == 124
    assert daemon.cli(*options, "--", "cat", "a b").stderr.count("a b") == 1


def test_a_daemon_that_is_stopped_takes_running_commands_with_it(
    every_daemon: RunningDaemon,
):
    daemon = every_daemon
    workspace = daemon.make_workspace()
    started = daemon.cli(
        *("run", "--background", "--cwd", str(workspace), "--", "sleep 600 & sleep 601")
    )
    assert started.returncode == 0, started.stderr
    listed = json.loads(daemon.cli("ps", "--json").stdout)["tasks"]
    assert [task["task_id"] for task in listed] == [started.stdout.strip()]
    # The fixture stops the daemon and fails if a process, mount or socket is left.


def test_nothing_of_the_workspace_decides_what_runs(every_daemon: RunningDaemon):
    daemon = every_daemon
    workspace = daemon.make_workspace()
    for name in ("bash", "bwrap", "python3"):
        planted = workspace / name
        planted.write_text("#!/bin/sh\necho planted\n")
        planted.chmod(0o755)
    (workspace / "json.py").write_text("print('planted')")
    path = f"{workspace}:/usr/bin:/bin"
    result = daemon.run("echo real", cwd=workspace, env={"PATH": path})
    assert text(result) == "real\n"
