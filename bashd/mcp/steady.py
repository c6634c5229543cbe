"""An executor over a connection that is made anew when the daemon comes back.

One task keeps the connection: it connects, waits until the connection is lost, and
connects again to the same session. In the background it only looks for a daemon that
somebody else started; a call that needs one may start it. A call that was under way
when the connection broke is not sent again, unless it only reads: nobody knows how far
it had come.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

import anyio

from bashd.client import Client, connect
from bashd.client.live import tell
from bashd.core.errors import BashdError, ConnectError, UnknownSessionError
from bashd.protocol.messages import ApprovalAskParams

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping

    from anyio.abc import TaskStatus

    from bashd.core.abort import AbortSignal
    from bashd.core.executor import OutputSink, TaskListener
    from bashd.core.model import (
        ExecRequest,
        ExecSpec,
        Mode,
        RunResult,
        TaskInfo,
        TaskRead,
    )
    from bashd.mcp.questions import CommandQuestion
    from bashd.protocol.messages import SessionInfo

T = TypeVar("T")

_FIRST_RETRY_S: Final = 0.2
_LONGEST_RETRY_S: Final = 5.0
"""While the daemon is away, a look at the socket this often costs nothing."""
_CALL_WAITS_S: Final = 15.0
"""How long a call waits for a daemon to be there: a start takes about a second."""


@dataclass(frozen=True, slots=True)
class Reach:
    """Which daemon and which session."""

    socket: str | None = None
    cwd: str | None = None
    mode: Mode | None = None
    policy: str | None = None
    session: str | None = None
    """Come back to this one; *cwd*, *mode* and *policy* are for a new one."""
    autostart: bool = True
    """Start the user's own daemon when a call needs one and there is none."""
    host: str | None = None
    """``ssh://[user@]host[:port]`` when it is another machine's."""


@asynccontextmanager
async def open_steady(reach: Reach) -> AsyncGenerator[SteadyClient]:
    """Connect and stay connected within the block.

    Raises:
        BashdError: The first connection cannot be made.
    """
    client = SteadyClient(reach)
    failure: BashdError | None = None
    async with anyio.create_task_group() as group:
        try:
            await group.start(client.keep)
            yield client
        except BashdError as error:
            failure = error
        group.cancel_scope.cancel()
    if failure is not None:
        # Not from inside the task group, which would wrap it in an ExceptionGroup.
        raise failure


class SteadyClient:
    """An `Executor` over one session of a daemon; see `open_steady`."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._last: Client | None = None
        self._connected = False
        self._failure: BashdError | None = None
        self._changed = anyio.Event()
        self._wanted = anyio.Event()
        self._listeners: list[TaskListener] = []
        self._told: set[str] = set()

    @property
    def session(self) -> SessionInfo:
        """The session as it was when the connection was last made."""
        return self._client.session

    @property
    def sandbox_mode(self) -> Mode | None:
        """Mode of a call that names none; None when this daemon never confines."""
        return self._client.sandbox_mode

    def resolve(self, request: ExecRequest) -> ExecSpec:
        """Apply defaults and caps; see `Executor.resolve`."""
        return self._client.resolve(request)

    async def run(
        self,
        spec: ExecSpec,
        /,
        *,
        abort: AbortSignal | None = None,
        on_output: OutputSink | None = None,
    ) -> RunResult:
        """Run in the foreground; see `Executor.run`."""
        client = await self._ready()
        with _broken_off("the command ran"):
            return await client.run(spec, abort=abort, on_output=on_output)

    async def run_or_detach(
        self,
        spec: ExecSpec,
        /,
        *,
        limit_ms: float,
        abort: AbortSignal | None = None,
        on_output: OutputSink | None = None,
    ) -> RunResult | TaskInfo:
        """Run in the foreground up to a limit; see `DetachingExecutor`."""
        client = await self._ready()
        with _broken_off("the command ran"):
            return await client.run_or_detach(
                spec, limit_ms=limit_ms, abort=abort, on_output=on_output
            )

    async def ask(self, question: CommandQuestion, abort: AbortSignal | None) -> str:
        """Have the daemon's watchers asked; this is an `ApprovalQueue`."""
        params = ApprovalAskParams(
            session_id=question.session_id,
            call_id=question.call_id,
            command=question.command,
            reason=question.reason,
            mode=question.mode,
            workdir=question.workdir,
        )
        client = await self._ready()
        return await client.ask_approval(params, abort=abort)

    async def start(
        self, spec: ExecSpec, /, *, abort: AbortSignal | None = None
    ) -> TaskInfo:
        """Start in the background; see `Executor.start`."""
        client = await self._ready()
        with _broken_off("the task was being started"):
            return await client.start(spec, abort=abort)

    async def get(self, task_id: str) -> TaskInfo | None:
        """Return the task, or None for an unknown id."""
        return await self._read(lambda client: client.get(task_id))

    async def list(self) -> list[TaskInfo]:
        """Return the session's tasks in the order they were started."""
        return await self._read(
            lambda client: client.list(session_id=self.session.session_id)
        )

    async def owner_of(self, task_id: str) -> str | None:
        """Return the owner token verbatim; None for unowned and for unknown ids."""
        return await self._read(lambda client: client.owner_of(task_id))

    async def read_output(self, task_id: str) -> TaskRead | None:
        """Read what came since the last read; None if unknown."""
        return await self._read(lambda client: client.read_output(task_id))

    async def kill(self, task_id: str) -> bool:
        """End a running task; see `Executor.kill`."""
        return await self._read(lambda client: client.kill(task_id))

    async def take_notices(self) -> list[TaskInfo]:
        """Return finished tasks whose notice nobody has taken; a `NoticeQueue`."""
        if not self._connected:
            # Not waited for: they are kept, and come with a later result.
            raise self._failure or ConnectError("not connected to a daemon")
        return await self._client.take_notices()

    async def session_now(self) -> SessionInfo:
        """Return the session as it is now."""
        return await self._read(lambda client: client.session_now())

    async def record(self, event: Mapping[str, object]) -> None:
        """Append an approval's event to the session's log."""
        client = await self._ready()
        await client.record(event)

    def on_task_done(self, listener: TaskListener) -> Callable[[], None]:
        """Call *listener* once per settled task; returns an unsubscribe function."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def keep(
        self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Hold the connection until cancelled; says *started* at the first one.

        Raises:
            BashdError: The first connection cannot be made.
        """
        retry_s, may_start = _FIRST_RETRY_S, True
        while True:
            try:
                async with self._connect(autostart=may_start) as client:
                    first = self._last is None
                    self._now(client, None)
                    if first:
                        task_status.started()
                    retry_s = _FIRST_RETRY_S
                    await client.wait_lost()
                    self._now(None, ConnectError("the daemon went away"))
            except UnknownSessionError as error:
                if self._last is None:
                    raise
                self._now(None, _session_over(error))
                return
            except BashdError as error:
                if self._last is None:
                    raise
                self._now(None, error)
            may_start = await self._pause(retry_s)
            retry_s = min(2 * retry_s, _LONGEST_RETRY_S)

    @asynccontextmanager
    async def _connect(self, *, autostart: bool) -> AsyncGenerator[Client]:
        reach, known = self._reach, self._last
        session = known.session.session_id if known else reach.session
        new = session is None
        async with connect(
            reach.socket,
            host=reach.host,
            cwd=reach.cwd if new else None,
            mode=reach.mode if new else None,
            policy=reach.policy if new else None,
            session=session,
            autostart=autostart and reach.autostart,
        ) as client:
            client.on_task_done(self._on_done)
            yield client

    async def _pause(self, seconds: float) -> bool:
        """Wait, shortly if a call wants a daemon; returns whether one does."""
        await anyio.sleep(_FIRST_RETRY_S)
        with anyio.move_on_after(seconds - _FIRST_RETRY_S):
            await self._wanted.wait()
        wanted, self._wanted = self._wanted.is_set(), anyio.Event()
        return wanted

    def _now(self, client: Client | None, failure: BashdError | None) -> None:
        self._last = client or self._last
        self._connected, self._failure = client is not None, failure
        self._changed.set()
        self._changed = anyio.Event()

    def _on_done(self, task: TaskInfo) -> None:
        # After a reconnection the daemon may tell again what it was not sure of.
        if task.task_id in self._told:
            return
        self._told.add(task.task_id)
        for listener in tuple(self._listeners):
            tell(listener, task)

    @property
    def _over(self) -> bool:
        return isinstance(self._failure, UnknownSessionError)

    @property
    def _client(self) -> Client:
        if self._last is None:
            raise ConnectError("not connected to a daemon yet")
        return self._last

    async def _ready(self) -> Client:
        with anyio.move_on_after(_CALL_WAITS_S):
            while not self._connected and not self._over:
                self._wanted.set()
                await self._changed.wait()
        if not self._connected:
            raise self._failure or ConnectError("no daemon could be reached")
        return self._client

    async def _read(self, use: Callable[[Client], Awaitable[T]]) -> T:
        try:
            return await use(await self._ready())
        except ConnectError:
            return await use(await self._ready())


@contextmanager
def _broken_off(meanwhile: str) -> Generator[None]:
    try:
        yield
    except ConnectError as error:
        raise ConnectError(
            f"the connection to the daemon broke while {meanwhile} ({error.message}); "
            "find out how far it came before running it again"
        ) from None


def _session_over(error: UnknownSessionError) -> UnknownSessionError:
    return UnknownSessionError(
        f"{error.message}; it was closed, or idle for too long. Restart this MCP "
        "server to get a new session"
    )
