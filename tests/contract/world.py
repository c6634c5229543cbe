"""What a case needs: an executor, callers with sessions, and the tools over both.

A `Host` is where executors come from. `LocalHost` makes one in this process; a host
that speaks to a daemon gives every session a connection of its own. The cases are
written against `World` and do not know which it is.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Self
from uuid import uuid4

import anyio

from bashd.core.executor import Executor
from bashd.tools.agent import Agent, Agents
from bashd.tools.session import LoggedSession, MemoryLog, mode_event
from bashd.tools.toolset import Call, ToolResult, Toolset
from tests.support.local_executor import Bwrap, LocalConfig, LocalExecutor

if TYPE_CHECKING:
    from bashd.core.abort import AbortSignal
    from bashd.core.model import Mode, TaskInfo
    from bashd.tools.approval import Approver
    from bashd.tools.hooks import Hook


class Host(Protocol):
    """Where executors come from."""

    @property
    def executor(self) -> Executor:
        """The executor of callers without a session."""
        ...

    async def open(self, cwd: str | None) -> tuple[str, Executor]:
        """Open a session: its id, and the executor through which it is served."""
        ...


HostFactory = Callable[..., AbstractAsyncContextManager[Host]]


@dataclass
class Caller:
    """A session's agent with what it was told and the log it writes."""

    agent: Agent
    log: MemoryLog
    notices: list[tuple[str, dict[str, str]]]

    async def switch(self, mode: Mode | None) -> None:
        await self.log.append(mode_event(mode))

    async def events(self, kind: str) -> list[dict[str, object]]:
        return [e for e in await self.log.events() if e["type"] == kind]


@dataclass
class World:
    """Tools and callers over one host."""

    host: Host
    approvals: Approver | None = None
    hooks: tuple[Hook, ...] = ()
    agents: Agents = field(default_factory=Agents)
    _toolsets: dict[str | None, Toolset] = field(
        default_factory=dict[str | None, Toolset]
    )
    _executors: dict[str | None, Executor] = field(
        default_factory=dict[str | None, Executor]
    )
    _settled: set[str] = field(default_factory=set[str])
    _news: anyio.Event = field(default_factory=anyio.Event)

    async def session(
        self, *, cwd: str | None = None, key: str | None = None, live: bool = True
    ) -> Caller:
        """Open a session with one live agent."""
        session_id, executor = await self.host.open(cwd)
        caller = self.join(session_id, cwd=cwd, key=key, live=live)
        self._executors[session_id] = executor
        return caller

    def join(
        self,
        session_id: str,
        *,
        cwd: str | None = None,
        key: str | None = None,
        live: bool = True,
    ) -> Caller:
        """Make another agent of a session that is open."""
        log, notices = MemoryLog(), list[tuple[str, dict[str, str]]]()
        agent = Agent(
            session_id,
            cwd=cwd,
            session=LoggedSession(log),
            inject=lambda text, source: notices.append((text, source)),
        )
        agent.live = live
        self.agents.add(key or uuid4().hex, agent)
        return Caller(agent, log, notices)

    def executor(self, caller: Caller | None = None) -> Executor:
        """Return the executor a caller is served by."""
        session_id = caller.agent.session_id if caller else None
        return self._executors.get(session_id, self.host.executor)

    def tools(self, caller: Caller | None = None) -> Toolset:
        """Return the tools of a caller; one toolset an executor."""
        executor = self.executor(caller)
        for session_id, toolset in self._toolsets.items():
            if self._executors.get(session_id, self.host.executor) is executor:
                return toolset
        toolset = Toolset(
            agents=self.agents, approvals=self.approvals, hooks=self.hooks
        )
        toolset.mount(executor)
        # After the toolset's own listener, so that notices are out by then.
        executor.on_task_done(self._on_settled)
        self._toolsets[caller.agent.session_id if caller else None] = toolset
        return toolset

    def _on_settled(self, task: TaskInfo) -> None:
        self._settled.add(task.task_id)
        self._news.set()
        self._news = anyio.Event()

    async def call(
        self,
        name: str,
        args: object,
        caller: Caller | None = None,
        *,
        abort: AbortSignal | None = None,
        call_id: str = "",
    ) -> ToolResult:
        call = Call(
            agent=caller.agent if caller else None, call_id=call_id, abort=abort
        )
        return await self.tools(caller).call(name, args, call)

    async def bash(
        self,
        command: str,
        caller: Caller | None = None,
        *,
        abort: AbortSignal | None = None,
        call_id: str = "",
        **args: Any,
    ) -> ToolResult:
        """Call `bash` with a description nobody looks at."""
        full = {"command": command, "description": "Do what the case says", **args}
        return await self.call("bash", full, caller, abort=abort, call_id=call_id)

    async def start(
        self, command: str, caller: Caller | None = None, **args: Any
    ) -> str:
        """Start a background task and return its id."""
        result = await self.bash(command, caller, run_in_background=True, **args)
        assert not result.is_error, result.text
        return result.text.removeprefix("started background task ")

    async def output(self, task_id: str, caller: Caller | None = None) -> ToolResult:
        return await self.call("bash_output", {"task_id": task_id}, caller)

    async def kill(self, task_id: str, caller: Caller | None = None) -> ToolResult:
        return await self.call("bash_kill", {"task_id": task_id}, caller)

    async def settled(self, task_id: str, caller: Caller | None = None) -> None:
        """Wait until a task has settled and everyone was told."""
        self.tools(caller)
        while task_id not in self._settled:
            await self._news.wait()


class LocalHost:
    """An executor in this process; every session shares it."""

    def __init__(self, config: LocalConfig, root: str | None) -> None:
        self._local = LocalExecutor(config, Bwrap(root) if root else None)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self._local)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    @property
    def executor(self) -> Executor:
        return self._local

    async def open(self, cwd: str | None) -> tuple[str, Executor]:
        return uuid4().hex, self._local


def local_host(
    *, root: str | None = None, **settings: Any
) -> AbstractAsyncContextManager[Host]:
    """Open a host in this process.

    Args:
        root: Workspace; commands are then confined by bubblewrap.
        settings: Fields of `LocalConfig`.
    """
    return LocalHost(LocalConfig(**settings), root)
