"""`bashd mcp` as a client starts it, over a real daemon."""

from __future__ import annotations

import json
import os
import secrets
import signal
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from tests.mcp.conftest import new_folder
from tests.mcp.daemon_desk import WRITE, decisions, desk, restart
from tests.mcp.serving import User, texts
from tests.support.enclosure import describe
from tests.support.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from mcp_types import CallToolResult

    from tests.support.daemons import RunningDaemon

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


async def test_a_denial_names_the_path_and_an_escalation_cures_it(
    daemon: RunningDaemon, folder: Path, era: str
) -> None:
    async with desk(daemon, "--cwd", str(folder), era=era) as at:
        denied = await at.bash("echo x > f")
        assert (
            "\n[sandbox: file access denied under read-only mode]\n"
            f"[sandbox: denied write to {folder}/f; writable here: /tmp]\n"
            "[sandbox: escalation available"
        ) in texts(denied)[0]
        granted = await at.bash("echo x > f", **WRITE)
        assert texts(granted) == ["(no output)"]
        assert (await anyio.Path(folder / "f").read_text()) == "x\n"
        again = await at.bash("echo y > f")
        assert "denied under read-only mode" in texts(again)[0]
        assert decisions(daemon, await at.session_id()) == ["allowed-once"]


async def test_a_mode_switched_from_outside_is_in_force_at_once(
    daemon: RunningDaemon, folder: Path
) -> None:
    async with desk(daemon, "--cwd", str(folder)) as at:
        session_id = await at.session_id()
        assert (
            daemon.cli("session", "mode", session_id, "workspace-write").returncode == 0
        )
        assert texts(await at.bash("touch f")) == ["(no output)"]
        refused = await at.bash("touch g", **WRITE)
        assert 'current "workspace-write" mode' in texts(refused)[0]
        assert at.user.questions == []


async def test_a_long_command_goes_on_in_the_background(
    daemon: RunningDaemon, folder: Path
) -> None:
    options = ("--cwd", str(folder), "--foreground-limit", "2.5")
    async with desk(daemon, *options) as at:
        quick = await at.bash("echo quick; exit 3")
        assert texts(quick) == ["quick\n[exit code: 3]"]
        moved = await at.bash("echo a; until [ -e go ]; do sleep 0.05; done; echo b")
        assert "still running after 2500ms" in texts(moved)[0]
        task_id = moved.structured_content["task"]["task_id"]
        await anyio.Path(folder / "go").touch()
        await until(at.told)
        assert await at.output(task_id) == "a\nb\n[status: completed, exit code: 0]"


async def test_live_output_comes_until_a_command_goes_on_in_the_background(
    daemon: RunningDaemon, folder: Path, era: str
) -> None:
    reports: list[tuple[float, str | None]] = []

    async def on_progress(
        progress: float, total: float | None, message: str | None
    ) -> None:
        reports.append((progress, message))

    options = ("--cwd", str(folder), "--foreground-limit", "2.5")
    async with desk(daemon, *options, era=era) as at:
        command = "echo early; until [ -e go ]; do sleep 0.05; done; echo late"
        moved = await at.client.call_tool(
            "bash",
            {"command": command, "description": "Wait to be told"},
            progress_callback=on_progress,
        )
        assert "still running after 2500ms" in texts(moved)[0]
        assert "".join(text or "" for _, text in reports) == "early\n"
        assert [p for p, _ in reports] == sorted({p for p, _ in reports})
        task_id = moved.structured_content["task"]["task_id"]
        await anyio.Path(folder / "go").touch()
        assert daemon.cli("wait", task_id).returncode == 0
        # All of it, also what was seen live, is there for the model.
        assert await at.output(task_id) == (
            "early\nlate\n[status: completed, exit code: 0]"
        )


async def test_tools_are_the_same_bytes_for_every_session(
    daemon: RunningDaemon, folder: Path, era: str
) -> None:
    listed: set[str] = set()
    for mode in ("read-only", "danger-full-access"):
        async with desk(daemon, "--cwd", str(folder), "--mode", mode, era=era) as at:
            tools = (await at.client.list_tools()).tools
        assert [tool.name for tool in tools] == ["bash", "bash_output", "bash_kill"]
        listed.add(json.dumps([tool.model_dump() for tool in tools]))
    (only,) = listed
    assert "sanctioned exception" in only


async def test_the_facts_have_the_keys_of_the_command_line(
    daemon: RunningDaemon, folder: Path
) -> None:
    async with desk(daemon, "--cwd", str(folder)) as at:
        facts = (await at.bash("echo x > f")).structured_content
        session_id = await at.session_id()
        task_id = await at.start("true")
        assert daemon.cli("wait", task_id).returncode == 0
        read = await at.client.call_tool("bash_output", {"task_id": task_id})
        listed = daemon.cli("ps", "--all", "--json", "--session", session_id)
    printed = daemon.run("echo x > f", cwd=folder)
    assert facts.keys() == printed.keys()
    assert facts["sandbox"].keys() == printed["sandbox"].keys()
    assert facts["stdout"].keys() == printed["stdout"].keys()
    (row,) = json.loads(listed.stdout)["tasks"]
    task = read.structured_content["task"]
    assert {key: task[key] for key in row} == row


RULES = """\
mode = "read-only"

[[command]]
pattern = "^echo fine"
action = "allow"

[[command]]
pattern = "git push"
action = "deny"
reason = "pushing is for people"

[[command]]
pattern = "^echo"
action = "ask"
reason = "it echoes"
"""


async def test_the_rules_of_a_policy_are_applied_and_may_change(
    daemon: RunningDaemon, folder: Path
) -> None:
    await write_policy(folder, "read-only", RULES)
    user = User("decline")
    env = {"XDG_CONFIG_HOME": str(folder)}
    async with desk(daemon, "--cwd", str(folder), user=user, env=env) as at:
        allowed = await at.bash("echo fine; true git push")
        assert texts(allowed) == ["fine\n"]
        denied = await at.bash("true git push")
        assert texts(denied) == [
            "Error: command refused by policy: pushing is for people"
        ]
        declined = await at.bash("echo hello")
        assert texts(declined) == ["Error: the user rejected running this command"]
        assert "Reason: run command: it echoes" in user.questions[0].message
        await write_policy(folder, "read-only", 'mode = "read-only"\n')
        assert texts(await at.bash("echo hello")) == ["hello\n"]


ASK = """\
mode = "workspace-write"

[[command]]
pattern = "one"
action = "ask"
reason = "it is one"
"""
DENY = """\
mode = "workspace-write"

[[command]]
pattern = "two"
action = "deny"
reason = "no twos"
"""


async def test_a_policy_of_its_own_and_the_rules_of_its_mode(
    daemon: RunningDaemon, folder: Path
) -> None:
    await write_policy(folder, "workspace-write", ASK)
    await write_policy(folder, "mine", DENY)
    env = {"XDG_CONFIG_HOME": str(folder)}
    options = ("--cwd", str(folder), "--policy", "mine")
    async with desk(daemon, *options, env=env) as at:
        assert texts(await at.bash("touch f")) == ["(no output)"]
        assert texts(await at.bash("echo one")) == ["one\n"]
        assert len(at.user.questions) == 1
        # Both lists have their say: a yes to the first does not help against the other.
        refused = await at.bash("echo one two")
        assert texts(refused) == ["Error: command refused by policy: no twos"]
        assert len(at.user.questions) == 1


async def write_policy(folder: Path, name: str, text: str) -> None:
    path = anyio.Path(folder / "bashd" / "policies" / f"{name}.toml")
    await path.parent.mkdir(parents=True, exist_ok=True)
    await path.write_text(text)


async def test_a_killed_client_comes_back_to_its_session(
    daemon: RunningDaemon, folder: Path
) -> None:
    async with desk(daemon, "--cwd", str(folder)) as at:
        session_id = await at.session_id()
        task_id = await at.start("echo kept; sleep 60")
        for server in at.servers:
            os.kill(server, signal.SIGKILL)
    async with (
        desk(daemon, "--session", session_id) as back,
        desk(daemon, "--cwd", str(folder)) as other,
    ):
        assert await back.session_id() == session_id

        async def kept() -> bool:
            return (await back.output(task_id)).startswith("kept\n")

        await until(kept)
        assert await other.output(task_id) == (
            f"Error: task {task_id} belongs to another session"
        )
        killed = await back.client.call_tool("bash_kill", {"task_id": task_id})
        assert texts(killed)[0] == f"killed background task {task_id}"


async def test_two_clients_two_sessions(
    daemon: RunningDaemon, folder: Path, era: str
) -> None:
    async with (
        desk(daemon, "--cwd", str(folder), era=era) as mine,
        desk(daemon, "--cwd", str(folder), era=era) as theirs,
    ):
        assert await mine.session_id() != await theirs.session_id()
        task_id = await mine.start("echo secret; sleep 60")
        foreign = f"Error: task {task_id} belongs to another session"
        assert await theirs.output(task_id) == foreign
        refused = await theirs.client.call_tool("bash_kill", {"task_id": task_id})
        assert texts(refused) == [foreign]

        async def secret() -> bool:
            return "secret" in await mine.output(task_id)

        # Their attempt has not moved the cursor.
        await until(secret)
        assert (await mine.output(task_id)).endswith("[status: running]")
        killed = await mine.client.call_tool("bash_kill", {"task_id": task_id})
        assert texts(killed)[0] == f"killed background task {task_id}"


async def test_cancelling_a_call_ends_its_command(
    daemon: RunningDaemon, folder: Path, era: str
) -> None:
    mark = f"3{secrets.randbelow(10**8):08}.5"
    command = f"touch running; sleep {mark}"
    options = ("--cwd", str(folder), "--mode", "workspace-write")
    async with desk(daemon, *options, era=era) as at:
        async with anyio.create_task_group() as group:
            group.start_soon(at.bash, command)
            await until(anyio.Path(folder / "running").exists)
            assert _running(daemon, mark)
            group.cancel_scope.cancel()

        async def gone() -> bool:
            return not _running(daemon, mark)

        await until(gone)
        assert texts(await at.bash("echo on")) == ["on\n"]


async def test_a_client_that_is_gone_takes_its_foreground_command_along(
    daemon: RunningDaemon, folder: Path
) -> None:
    mark = f"3{secrets.randbelow(10**8):08}.5"
    options = ("--cwd", str(folder), "--mode", "workspace-write")
    async with desk(daemon, *options, "--foreground-limit", "50") as at:
        session_id = await at.session_id()
        async with anyio.create_task_group() as group:
            group.start_soon(at.bash, f"echo so far; touch running; sleep {mark}")
            await until(anyio.Path(folder / "running").exists)
            for server in at.servers:
                os.kill(server, signal.SIGKILL)
            group.cancel_scope.cancel()

    async def gone() -> bool:
        return not _running(daemon, mark)

    await until(gone)

    async def listed() -> list[Any]:
        done = daemon.cli("ps", "--all", "--json", "--session", session_id)
        return json.loads(done.stdout)["tasks"]

    # What it had printed can still be read.
    (task,) = await until(listed)
    assert task["status"] == "killed"
    assert daemon.cli("logs", task["task_id"]).stdout == "so far\n"


def _running(daemon: RunningDaemon, mark: str) -> list[str]:
    found = [describe(pid) for pid in daemon.enclosure.pids()]
    return [line for line in found if f"sleep {mark}" in line]


async def test_a_restarted_daemon_finds_its_client_again(
    own_daemon: RunningDaemon,
) -> None:
    folder = new_folder(own_daemon)
    async with desk(own_daemon, "--cwd", str(folder)) as at:
        session_id = await at.session_id()
        task_id = await at.start(
            "echo before; until [ -e go ]; do sleep 0.05; done; echo after"
        )
        # Behind it in the same cell: when this one has ended, the task runs.
        await at.bash("true")
        restart(own_daemon)
        assert await at.session_id() == session_id
        await anyio.Path(folder / "go").touch()
        await until(at.told)
        assert await at.output(task_id) == (
            "before\nafter\n[status: completed, exit code: 0]"
        )
    assert len(at.user.logged) == 1


async def test_a_command_that_was_running_in_a_daemon_that_died_is_not_run_again(
    own_daemon: RunningDaemon,
) -> None:
    folder = new_folder(own_daemon)
    options = ("--cwd", str(folder), "--mode", "workspace-write")
    async with desk(own_daemon, *options) as at:
        results: list[CallToolResult] = []

        async def run() -> None:
            results.append(await at.bash("echo once >> runs; sleep 60"))

        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await until(anyio.Path(folder / "runs").exists)
            restart(own_daemon)
        assert results[0].is_error
        assert "broke while the command ran" in texts(results[0])[0]
        assert texts(await at.bash("cat runs")) == ["once\n"]


async def test_a_daemon_that_was_stopped_and_started_knows_the_session(
    own_daemon: RunningDaemon,
) -> None:
    folder = new_folder(own_daemon)
    options = ("--cwd", str(folder), "--mode", "workspace-write")
    async with desk(own_daemon, *options) as at:
        session_id = await at.session_id()
        task_id = await at.start("sleep 60")
        own_daemon.process.send_signal(signal.SIGTERM)
        await anyio.to_thread.run_sync(own_daemon.process.wait)
        restart(own_daemon)
        assert texts(await at.bash("touch f; printf $BASHD_SESSION_ID")) == [session_id]
        # A clean stop has ended the task, and there is no notice of that.
        assert await at.output(task_id) == f'Error: unknown bash task "{task_id}"'
        assert at.user.logged == []
