"""`bashd mcp` as a client starts it, over a real daemon, and the client."""

from __future__ import annotations

import json
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters

from tests.mcp.serving import HANDSHAKE, User, texts
from tests.support.accounts import argv_as

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from mcp_types import CallToolResult

    from tests.support.daemons import RunningDaemon

WRITE = {"sandbox_permissions": "workspace-write", "justification": "Tests need it."}


class Desk:
    """A client and the `bashd mcp` it has started."""

    def __init__(self, client: Client, user: User, servers: list[int]) -> None:
        self.client, self.user = client, user
        self.servers = servers
        """Pids of the processes that the client has started."""

    async def bash(self, command: str, **args: Any) -> CallToolResult:
        full = {"command": command, "description": "Do what the test says", **args}
        return await self.client.call_tool("bash", full)

    async def start(self, command: str, **args: Any) -> str:
        """Start a background task and return its id."""
        result = await self.bash(command, run_in_background=True, **args)
        return result.structured_content["task"]["task_id"]

    async def output(self, task_id: str) -> str:
        result = await self.client.call_tool("bash_output", {"task_id": task_id})
        return texts(result)[0]

    async def session_id(self) -> str:
        return texts(await self.bash("printf $BASHD_SESSION_ID"))[0]

    async def told(self, count: int = 1) -> bool:
        """Return whether the client has logged that many notices; for `until`."""
        return len(self.user.logged) >= count


@asynccontextmanager
async def desk(
    daemon: RunningDaemon,
    *options: str,
    era: str = HANDSHAKE,
    user: User | None = None,
    env: dict[str, str] | None = None,
) -> AsyncGenerator[Desk]:
    """Start `bashd mcp OPTIONS…` as the daemon's caller and connect to it."""
    user = user or User()
    argv = daemon.caller_argv("mcp", "--socket", str(daemon.socket), *options)
    parameters = StdioServerParameters(
        command=argv[0],
        args=argv[1:],
        env=daemon.caller_env(env),
        cwd=str(daemon.caller.home),
    )
    before = servers(daemon)
    async with Client(
        parameters,
        mode=era,
        elicitation_callback=user.elicit if user.answer else None,
        logging_callback=user.log,
    ) as client:
        yield Desk(client, user, [pid for pid in servers(daemon) if pid not in before])


def servers(daemon: RunningDaemon) -> list[int]:
    """Return the pids of the `bashd mcp` processes that serve this daemon's clients."""
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


def log_of(daemon: RunningDaemon, session_id: str) -> list[dict[str, Any]]:
    """Return the events in the log of a session."""
    shown = daemon.cli("session", "show", session_id, "--json")
    with open(json.loads(shown.stdout)["log_path"]) as lines:  # noqa: PTH123
        return [json.loads(line) for line in lines]


def decisions(daemon: RunningDaemon, session_id: str) -> list[str]:
    """Return how a session's questions ended; each must have been asked."""
    log = log_of(daemon, session_id)
    asked = [event["id"] for event in log if event["type"] == "approval/asked"]
    decided = [event for event in log if event["type"] == "approval/decided"]
    assert asked == [event["id"] for event in decided]
    return [event["outcome"] for event in decided]


def restart(daemon: RunningDaemon) -> None:
    """Kill a daemon and start it again; what it had started goes on."""
    daemon.kill()
    argv = [
        *(daemon.install.python, "-P", "-m", "bashd.daemon"),
        *("--socket", str(daemon.socket)),
        *("--config", str(daemon.folder / "bashd.toml")),
    ]
    daemon.process = daemon.enclosure.start(
        argv_as(daemon.account, argv),
        env=daemon.account.environment(),
        cwd=str(daemon.folder),
        log=daemon.folder / "daemon.log",
    )
