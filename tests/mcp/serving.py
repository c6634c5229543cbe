"""A server over an executor in this process, and the official client at its other end.

Both eras are spoken over real message streams: handshake clients and clients of 2026
reach the same server object the same way.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
from mcp.client.client import Client
from mcp.shared.memory import create_client_server_memory_streams
from mcp_types import (
    ElicitResult,
    LoggingMessageNotificationParams,
    TextContent,
    TextResourceContents,
)

from bashd.core.model import Mode
from bashd.mcp.server import Composition, build_server
from bashd.tools.agent import Agent
from bashd.tools.session import LoggedSession, MemoryLog
from tests.support.local_executor import Bwrap, LocalConfig, LocalExecutor

if TYPE_CHECKING:
    from pathlib import Path

    from mcp_types import CallToolResult, ReadResourceResult

    from bashd.core.executor import Executor
    from bashd.tools.agent import Inject
    from bashd.tools.session import Event

HANDSHAKE, MODERN = "legacy", "auto"
ERAS = [HANDSHAKE, MODERN]


@dataclass
class User:
    """Whoever sits at the client: answers its dialogs and keeps what it shows."""

    answer: str | None = "accept"
    """None for a client that cannot show dialogs."""
    questions: list[Any] = field(default_factory=list[Any])
    logged: list[str] = field(default_factory=list[str])

    async def elicit(self, context: object, params: Any) -> ElicitResult:
        self.questions.append(params)
        return ElicitResult(action=self.answer)  # pyright: ignore[reportArgumentType]

    async def log(self, params: LoggingMessageNotificationParams) -> None:
        self.logged.append(str(params.data))


class _Streams:
    """One end of a pair of message streams, as the client wants a transport."""

    def __init__(self, streams: Any) -> None:
        self._streams = streams

    async def __aenter__(self) -> Any:
        return self._streams

    async def __aexit__(self, *exc: object) -> None:
        for stream in self._streams:
            await stream.aclose()


@dataclass
class Desk:
    """A client, its user, and what the server keeps of the session."""

    client: Client
    user: User
    log: MemoryLog
    executor: Executor
    session_id: str

    async def bash(self, command: str, **args: Any) -> CallToolResult:
        full = {"command": command, "description": "Do what the test says", **args}
        return await self.client.call_tool("bash", full)

    async def decided(self) -> Sequence[Event]:
        """Return the log once a question in it has been decided."""
        events = await self.log.events()
        return events if events[-1:] and "outcome" in events[-1] else ()

    async def output(self, task_id: str) -> CallToolResult:
        return await self.client.call_tool("bash_output", {"task_id": task_id})


@asynccontextmanager
async def desk(
    executor: Executor,
    *,
    era: str = HANDSHAKE,
    session_id: str = "session-1",
    cwd: str | None = None,
    user: User | None = None,
    log: MemoryLog | None = None,
    **settings: Any,
) -> AsyncGenerator[Desk]:
    """Serve one client over *executor*; *settings* are fields of `Composition`."""
    user, kept = user or User(), log or MemoryLog()

    def make_agent(inject: Inject) -> Agent:
        session = LoggedSession(kept)
        return Agent(session_id, cwd=cwd, session=session, inject=inject)

    server = await build_server(Composition(executor, make_agent, **settings))
    async with (
        create_client_server_memory_streams() as (near, far),
        anyio.create_task_group() as group,
    ):
        options = server.create_initialization_options()
        group.start_soon(server.run, far[0], far[1], options)
        async with Client(
            _Streams(near),
            mode=era,
            elicitation_callback=user.elicit if user.answer else None,
            logging_callback=user.log,
        ) as client:
            yield Desk(client, user, kept, executor, session_id)


@asynccontextmanager
async def local(
    workspace: Path | None = None, **config: Any
) -> AsyncGenerator[LocalExecutor]:
    """Open an executor; confined to *workspace*, read-only by default, if given."""
    if workspace is None:
        async with LocalExecutor(LocalConfig(**config)) as executor:
            yield executor
        return
    config = {"sandbox_mode": Mode.READ_ONLY, "cwd": str(workspace), **config}
    confinement = Bwrap(str(workspace))
    async with LocalExecutor(LocalConfig(**config), confinement) as executor:
        yield executor


def contents(result: ReadResourceResult) -> Any:
    """Return the JSON value that a resource holds."""
    (only,) = result.contents
    assert isinstance(only, TextResourceContents)
    return json.loads(only.text)


def texts(result: CallToolResult) -> list[str]:
    """Return the text blocks of a result."""
    return [block.text for block in result.content if isinstance(block, TextContent)]
