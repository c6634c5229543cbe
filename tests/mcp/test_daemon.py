"""`bashd mcp` as a client starts it, over a real daemon."""

from __future__ import annotations

import json
import os
import signal
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters

from bashd.client.link import Link
from tests.mcp.serving import HANDSHAKE, User, texts
from tests.support.accounts import current_account
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from mcp_types import CallToolResult

    from tests.conftest import DaemonFactory
    from tests.support.daemons import RunningDaemon

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

WRITE = {"sandbox_permissions": "workspace-write", "justification": "Tests need it."}


@pytest.fixture
def daemon(make_daemon: DaemonFactory) -> RunningDaemon:
    return make_daemon(account=current_account())


@pytest.fixture
def workspace(daemon: RunningDaemon) -> Path:
    return daemon.make_workspace()


class Desk:
    """A client and the `bashd mcp` it has started."""

    def __init__(self, client: Client, user: User) -> None:
        self.client, self.user = client, user

    async def bash(self, command: str, **args: Any) -> CallToolResult:
        full = {"command": command, "description": "Do what the test says", **args}
        return await self.client.call_tool("bash", full)

    async def output(self, task_id: str) -> str:
        result = await self.client.call_tool("bash_output", {"task_id": task_id})
        return texts(result)[0]

    async def session_id(self) -> str:
        return texts(await self.bash("printf $BASHD_SESSION_ID"))[0]


@asynccontextmanager
async def desk(
    daemon: RunningDaemon,
    *options: str,
    era: str = HANDSHAKE,
    user: User | None = None,
    env: dict[str, str] | None = None,
) -> AsyncGenerator[Desk]:
    user = user or User()
    argv = daemon.caller_argv("mcp", "--socket", str(daemon.socket), *options)
    parameters = StdioServerParameters(
        command=argv[0],
        args=argv[1:],
        env=daemon.caller_env(env),
        cwd=str(daemon.folder),
    )
    async with Client(
        parameters,
        mode=era,
        elicitation_callback=user.elicit if user.answer else None,
        logging_callback=user.log,
    ) as client:
        yield Desk(client, user)


def log_of(daemon: RunningDaemon, session_id: str) -> list[dict[str, Any]]:
    shown = daemon.cli("session", "show", session_id, "--json")
    with open(json.loads(shown.stdout)["log_path"]) as lines:  # noqa: PTH123
        return [json.loads(line) for line in lines]


async def test_a_denial_names_the_path_and_an_escalation_cures_it(
    daemon: RunningDaemon, workspace: Path, era: str
) -> None:
    async with desk(daemon, "--cwd", str(workspace), era=era) as at:
        denied = await at.bash("echo x > f")
        assert (
            "\n[sandbox: file access denied under read-only mode]\n"
            f"[sandbox: denied write to {workspace}/f; writable here: /tmp]\n"
            "[sandbox: escalation available"
        ) in texts(denied)[0]
        granted = await at.bash("echo x > f", **WRITE)
        assert texts(granted) == ["(no output)"]
        assert (await anyio.Path(workspace / "f").read_text()) == "x\n"
        again = await at.bash("echo y > f")
        assert "denied under read-only mode" in texts(again)[0]
        log = log_of(daemon, await at.session_id())
    assert [e["outcome"] for e in log if e["type"] == "approval/decided"] == [
        "allowed-once"
    ]


async def test_a_mode_switched_from_outside_is_in_force_at_once(
    daemon: RunningDaemon, workspace: Path
) -> None:
    async with desk(daemon, "--cwd", str(workspace)) as at:
        session_id = await at.session_id()
        assert (
            daemon.cli("session", "mode", session_id, "workspace-write").returncode == 0
        )
        assert texts(await at.bash("touch f")) == ["(no output)"]
        refused = await at.bash("touch g", **WRITE)
        assert 'current "workspace-write" mode' in texts(refused)[0]
        assert at.user.questions == []


async def test_a_long_command_goes_on_in_the_background(
    daemon: RunningDaemon, workspace: Path
) -> None:
    options = ("--cwd", str(workspace), "--foreground-limit", "0.3")
    async with desk(daemon, *options) as at:
        quick = await at.bash("echo quick; exit 3")
        assert texts(quick) == ["quick\n[exit code: 3]"]
        moved = await at.bash("echo a; until [ -e go ]; do sleep 0.05; done; echo b")
        assert "still running after 300ms" in texts(moved)[0]
        task_id = moved.structured_content["task"]["task_id"]
        await anyio.Path(workspace / "go").touch()

        async def told() -> bool:
            return bool(at.user.logged)

        await until(told)
        assert await at.output(task_id) == "a\nb\n[status: completed, exit code: 0]"


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
    daemon: RunningDaemon, workspace: Path
) -> None:
    policies = anyio.Path(workspace / "config" / "bashd" / "policies")
    await policies.mkdir(parents=True)
    await (policies / "read-only.toml").write_text(RULES)
    env = {"XDG_CONFIG_HOME": str(workspace / "config")}
    user = User("decline")
    async with desk(daemon, "--cwd", str(workspace), user=user, env=env) as at:
        allowed = await at.bash("echo fine; true git push")
        assert texts(allowed) == ["fine\n"]
        denied = await at.bash("true git push")
        assert texts(denied) == [
            "Error: command refused by policy: pushing is for people"
        ]
        declined = await at.bash("echo hello")
        assert texts(declined) == ["Error: the user rejected running this command"]
        assert "Reason: run command: it echoes" in user.questions[0].message
        await (policies / "read-only.toml").write_text('mode = "read-only"\n')
        assert texts(await at.bash("echo hello")) == ["hello\n"]


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        ("allowed-once", "(no output)"),
        (
            "rejected",
            'Error: the user rejected escalating this command to "workspace-write"',
        ),
    ],
)
async def test_a_watcher_answers_for_a_client_that_cannot_ask(
    daemon: RunningDaemon, workspace: Path, outcome: str, text: str
) -> None:
    def watch_and_answer(link: Link) -> dict[str, Any]:
        while (message := link.receive()).get("method") != "approval.asked":
            pass
        info = message["params"]["approval"]
        answer = {"approval_id": info["approval_id"], "outcome": outcome}
        link.call("approval.decide", answer)
        return info

    link, seen = Link.reach(str(daemon.socket), autostart=False), list[dict[str, Any]]()
    async with (
        desk(daemon, "--cwd", str(workspace), user=User(None)) as at,
        anyio.create_task_group() as group,
    ):
        link.call("approval.watch", {})

        async def person() -> None:
            seen.append(await anyio.to_thread.run_sync(watch_and_answer, link))

        group.start_soon(person)
        result = await at.bash("touch f", **WRITE)
        assert texts(result) == [text]
    link.close()
    assert (workspace / "f").exists() == (outcome == "allowed-once")
    assert (seen[0]["command"], seen[0]["mode"], seen[0]["workdir"]) == (
        "touch f",
        "workspace-write",
        str(workspace),
    )


async def test_with_nobody_to_ask_there_is_no_waiting(
    daemon: RunningDaemon, workspace: Path
) -> None:
    async with desk(daemon, "--cwd", str(workspace), user=User(None)) as at:
        result = await at.bash("touch f", **WRITE)
    assert texts(result)[0].endswith("no approval channel is available")


async def test_a_killed_client_comes_back_to_its_session(
    daemon: RunningDaemon, workspace: Path
) -> None:
    async with desk(daemon, "--cwd", str(workspace)) as at:
        session_id = await at.session_id()
        started = await at.bash("echo kept; sleep 60", run_in_background=True)
        task_id = started.structured_content["task"]["task_id"]
        for server in _servers(daemon):
            os.kill(server, signal.SIGKILL)
    async with (
        desk(daemon, "--session", session_id) as back,
        desk(daemon, "--cwd", str(workspace)) as other,
    ):
        assert await back.session_id() == session_id

        async def kept() -> bool:
            return (await back.output(task_id)).startswith("kept\n")

        await until(kept)
        assert await other.output(task_id) == (
            f"Error: task {task_id} belongs to another session"
        )


async def test_a_restarted_daemon_finds_its_client_again(
    daemon: RunningDaemon, workspace: Path
) -> None:
    async with desk(daemon, "--cwd", str(workspace)) as at:
        session_id = await at.session_id()
        started = await at.bash(
            "echo before; until [ -e go ]; do sleep 0.05; done; echo after",
            run_in_background=True,
        )
        task_id = started.structured_content["task"]["task_id"]
        _kill_and_start(daemon)
        assert await at.session_id() == session_id
        await anyio.Path(workspace / "go").touch()

        async def told() -> bool:
            return bool(at.user.logged)

        await until(told)
        assert await at.output(task_id) == (
            "before\nafter\n[status: completed, exit code: 0]"
        )
    assert len(at.user.logged) == 1


def _servers(daemon: RunningDaemon) -> list[int]:
    """Return the pids of the `bashd mcp` processes of this test's clients."""
    found: list[int] = []
    for pid in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:  # noqa: PTH123
                words = file.read().split(b"\0")
        except OSError:
            continue
        if b"mcp" in words and str(daemon.socket).encode() in words:
            found.append(int(pid))
    return found


def _kill_and_start(daemon: RunningDaemon) -> None:
    daemon.kill()
    argv = [
        *(daemon.install.python, "-P", "-m", "bashd.daemon"),
        *("--socket", str(daemon.socket)),
        *("--config", str(daemon.folder / "bashd.toml")),
    ]
    daemon.process = daemon.enclosure.start(
        argv,
        env=daemon.account.environment(),
        cwd=str(daemon.folder),
        log=daemon.folder / "daemon.log",
    )
