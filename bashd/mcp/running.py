"""Tool calls in flight, and the question one of them may be waiting with.

A call runs in a task of the server's, not in that of its request. A request that is
cancelled withdraws its call, which then ends its command properly before it is gone.
And a call may outlive a request on purpose: clients of 2026 may not be asked anything
while a request is open, so the request is answered with the question, and the client
sends it again with the answer. In between the call is parked here under a random
ticket, good for one return with the same arguments.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import anyio
from mcp.server.context import ServerRequestContext

from bashd.core.abort import AbortSignal
from bashd.core.errors import InternalError
from bashd.tools.toolset import ToolResult

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

_log = logging.getLogger(__name__)

Context = ServerRequestContext[Any, Any]

_END_S: Final = 10.0
"""Time calls get to end their commands when the client has gone: the default grace of
three seconds, and a margin for the daemon to be slow."""


@dataclass(slots=True, eq=False)
class RunningCall:
    """One tool call, from its arguments to its result."""

    name: str
    arguments: dict[str, Any]
    call_id: str
    context: Context
    """The request that waits for it now, or did last."""
    abort: AbortSignal = field(default_factory=AbortSignal)
    result: ToolResult | None = None
    """Set once the call has settled; stays None if it failed."""
    question: str | None = None
    """What the client must ask its user before the call can go on."""
    _settled: anyio.Event = field(default_factory=anyio.Event)
    _stopped: anyio.Event = field(default_factory=anyio.Event)
    _answered: anyio.Event = field(default_factory=anyio.Event)
    _answer: object = None

    @property
    def settled(self) -> bool:
        """Whether there is nothing more to wait for."""
        return self._settled.is_set()

    async def wait_settled(self) -> None:
        """Wait until there is nothing more to wait for."""
        await self._settled.wait()

    async def wait_stop(self) -> None:
        """Wait until the call has settled or poses a question."""
        await self._stopped.wait()

    async def pose(self, question: str) -> object:
        """Stop with *question*; returns what `resume` was given."""
        self.question, self._answered = question, anyio.Event()
        self._stopped.set()
        await self._answered.wait()
        return self._answer

    def resume(self, answer: object, context: Context) -> None:
        """Go on after a question, for the request that brought the answer."""
        self.question, self._answer, self.context = None, answer, context
        self._stopped = anyio.Event()
        self._answered.set()

    def settle(self, result: ToolResult | None) -> None:
        """Let whoever waits have the outcome; None for a call that failed."""
        self.result = result
        self._settled.set()
        self._stopped.set()


Perform = Callable[[RunningCall], Awaitable[ToolResult]]


class RunningCalls:
    """All calls of one server."""

    def __init__(self, perform: Perform) -> None:
        self._perform = perform
        self._calls: dict[str, RunningCall] = {}
        self._parked: dict[str, RunningCall] = {}
        self._group: TaskGroup | None = None

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        """Keep calls running within the block; at its end all are withdrawn."""
        async with anyio.create_task_group() as group:
            self._group = group
            try:
                yield
            finally:
                running = tuple(self._calls.values())
                for call in running:
                    call.abort.abort("the client has gone")
                # Shielded, because the reason to leave may be a cancellation.
                with anyio.move_on_after(_END_S, shield=True):
                    for call in running:
                        await call.wait_settled()
                group.cancel_scope.cancel()

    def find(self, call_id: str) -> RunningCall | None:
        """Return the running call of that id, or None."""
        return self._calls.get(call_id)

    def start(self, call: RunningCall) -> None:
        """Run *call* until it settles; its id must not be that of a running one."""
        if self._group is None:
            raise InternalError("calls run only within open()")
        self._calls[call.call_id] = call
        self._group.start_soon(self._run, call)

    def park(self, call: RunningCall) -> str:
        """Keep a call that waits for an answer; returns its ticket."""
        ticket = secrets.token_urlsafe(24)
        self._parked[ticket] = call
        return ticket

    def unpark(
        self, ticket: str, name: str, arguments: dict[str, Any]
    ) -> RunningCall | None:
        """Return the call of a *ticket*; None if it is not good for these arguments.

        A ticket is good once. One that comes with other arguments withdraws its call:
        the answer was given for what had been asked.
        """
        call = self._parked.pop(ticket, None)
        if call is None or call.settled:
            return None
        if (call.name, call.arguments) != (name, arguments):
            call.abort.abort("the answer came with other arguments")
            return None
        return call

    async def _run(self, call: RunningCall) -> None:
        result: ToolResult | None = None
        try:
            result = await self._perform(call)
        # The one place per call that reports what nobody expected; the client reads
        # that it failed, the log has the traceback.
        except Exception:  # noqa: BLE001 - see above
            _log.exception("the call %s failed", call.call_id)
        finally:
            del self._calls[call.call_id]
            call.settle(result)
