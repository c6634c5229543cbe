"""What a case needs: an executor, callers with sessions, and the tools over both.

A `Host` is where executors come from. `LocalHost` makes one in this process;
`tests.contract.daemon_host` speaks to a daemon, where every session has a connection of
its own. The cases are written against `World` and do not know which it is.
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
from bashd.tools.session import (
    LoggedSession,
    MemoryLog,
    SessionState,
    mode_event,
    policy_event,
)
from bashd.tools.toolset import Call, ToolResult, Toolset
from tests.support.local_executor import Bwrap, LocalConfig, LocalExecutor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bashd.core.abort import AbortSignal
    from bashd.core.model import Mode, TaskInfo
    from bashd.tools.approval import Approver
    from bashd.tools.hooks import Hook


class HostSession(Protocol):
    """One session of a host."""

    @property
    def session_id(self) -> str: ...

    @property
    def executor(self) -> Executor: ...

    @property
    def state(self) -> SessionState: ...

    async def switch(self, mode: Mode | None) -> None:
        """Override the session's mode, as somebody outside does."""
        ...

    async def events(self) -> Sequence[Mapping[str, object]]:
        """Return the session's log."""
        ...


class Host(Protocol):
    """Where executors come from."""

    @property
    def executor(self) -> Executor:
        """The executor of callers without a session."""
        ...

    async def open(self, cwd: str | None, approval: str) -> HostSession:
        """Open a session."""
        ...


HostFactory = Callable[..., AbstractAsyncContextManager[Host]]


@dataclass
class Caller:
    """A session's agent with what it was told."""

    agent: Agent
    session: HostSession
    notices: list[tuple[str, dict[str, str]]]

    async def switch(self, mode: Mode | None) -> None:
        await self.session.switch(mode)

    async def events(self, kind: str) -> list[dict[str, object]]:
        """Return the events of a kind, without when they were."""
        found = [e for e in await self.session.events() if e["type"] == kind]
        return [{k: v for k, v in e.items() if k != "time"} for e in found]


@dataclass
class World:
    """Tools and callers over one host."""

    host: Host
    approvals: Approver | None = None
    hooks: tuple[Hook, ...] = ()
    agents: Agents = field(default_factory=Agents)
    _toolsets: dict[int, Toolset] = field(default_factory=dict[int, Toolset])
    _settled: set[str] = field(default_factory=set[str])
    _news: anyio.Event = field(default_factory=anyio.Event)

    async def session(
        self,
        *,
        cwd: str | None = None,
        key: str | None = None,
        live: bool = True,
        approval: str = "ask",
    ) -> Caller:
        """Open a session with one live agent."""
        session = await self.host.open(cwd, approval)
        return self.join(session, cwd=cwd, key=key, live=live)

    def join(
        self,
        session: HostSession,
        *,
        cwd: str | None = None,
        key: str | None = None,
        live: bool = True,
    ) -> Caller:
        """Make another agent of a session that is open."""
        notices = list[tuple[str, dict[str, str]]]()
        agent = Agent(
            session.session_id,
            cwd=cwd,
            session=session.state,
            inject=lambda text, source: notices.append((text, source)),
        )
        agent.live = live
        self.agents.add(key or uuid4().hex, agent)
        return Caller(agent, session, notices)

    def executor(self, caller: Caller | None = None) -> Executor:
        """Return the executor a caller is served by."""
        return caller.session.executor if caller else self.host.executor

    def tools(self, caller: Caller | None = None) -> Toolset:
        """Return the tools of a caller; one toolset an executor."""
        executor = self.executor(caller)
        toolset = self._toolsets.get(id(executor))
        if toolset is None:
            toolset = Toolset(
                agents=self.agents, approvals=self.approvals, hooks=self.hooks
            )
            toolset.mount(executor)
            # After the toolset's own listener, so that notices are out by then.
            executor.on_task_done(self._on_settled)
            self._toolsets[id(executor)] = toolset
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


class LocalSession:
    """A session that is an id and a log in memory."""

    def __init__(self, executor: Executor, log: MemoryLog) -> None:
        self.session_id = uuid4().hex
        self.executor = executor
        self.state = LoggedSession(log)
        self._log = log

    async def switch(self, mode: Mode | None) -> None:
        await self._log.append(mode_event(mode))

    async def events(self) -> Sequence[Mapping[str, object]]:
        return await self._log.events()


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

    async def open(self, cwd: str | None, approval: str) -> LocalSession:
        return LocalSession(self._local, MemoryLog([policy_event(approval)]))


def local_host(
    *, root: str | None = None, **settings: Any
) -> AbstractAsyncContextManager[Host]:
    """Open a host in this process.

    Args:
        root: Workspace; commands are then confined by bubblewrap.
        settings: Fields of `LocalConfig`.
    """
    return LocalHost(LocalConfig(**settings), root)
