"""What a handler is given: one request, who sent it, and the way back to its client.

This is the seam between the connection (`bashd.daemon.api`) and the service that knows
sessions and tasks; neither imports the other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from bashd.core.abort import AbortSignal

if TYPE_CHECKING:
    import trio

    from bashd.core.errors import Refused
    from bashd.daemon.access import ConfinedAs
    from bashd.daemon.peer import Caller
    from bashd.daemon.terminal import Terminal
    from bashd.protocol.messages import InitializeResult


class Client(Protocol):
    """The connection a call came from; it may outlive the call."""

    @property
    def number(self) -> int:
        """Names the connection for as long as the daemon runs."""
        ...

    @property
    def closed(self) -> AbortSignal:
        """Fires when the connection is over."""
        ...

    async def notify(self, method: str, params: object) -> bool:
        """Send a notification, waiting while the client has too much unread.

        What waits here must not be what drains a pipe: read the output from where it
        is kept, at the speed of this call.

        Args:
            method: One of `bashd.protocol.messages.NOTIFICATIONS`.
            params: Its dataclass.

        Returns:
            False if the connection is over; then nothing was sent.
        """
        ...

    def notify_nowait(self, method: str, params: object) -> bool:
        """Send a notification unless the client has too much unread.

        Returns:
            False if it was dropped. Answers are never dropped.
        """
        ...


class Call:
    """One request while it is served."""

    __slots__ = (
        *("abort", "caller", "client", "kill", "method", "request_id"),
        *("stdin", "terminal"),
    )

    def __init__(
        self, *, caller: Caller, client: Client, method: str, request_id: int | str
    ) -> None:
        self.caller = caller
        """Who sent this request; another process than the previous one's, maybe."""
        self.client = client
        """Where it came from."""
        self.method = method
        """Its name."""
        self.request_id = request_id
        """The client's id of it, for notifications that belong to it."""
        self.abort = AbortSignal()
        """Fires when the client cancels this call or disconnects. The handler is not
        cancelled (but see `bashd.daemon.api.PURE_WAITS`): it ends what it started."""
        self.kill = AbortSignal()
        """Fires, before *abort*, when the client wants no grace either."""
        self.stdin: trio.abc.ReceiveChannel[bytes] | None = None
        """The client's stdin; only when the request said ``stdin_stream``."""
        self.terminal: Terminal | None = None
        """The terminal of its command; only when the request asked for one."""

    async def notify(self, method: str, params: object) -> bool:
        """Send a notification; see `Client.notify`."""
        return await self.client.notify(method, params)

    def notify_nowait(self, method: str, params: object) -> bool:
        """Send a notification or drop it; see `Client.notify_nowait`."""
        return self.client.notify_nowait(method, params)


Handler = Callable[[Call, Any], Awaitable[object]]
"""Serves one method: takes the call and its decoded parameters, returns its result.

May raise any `bashd.core.errors.BashdError`; everything else is reported to the client
as an internal error and logged.
"""


class Dispatch(Protocol):
    """What a connection needs of the service."""

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """Method to handler: all but ``initialize``, what `Calls` does itself."""
        ...

    def initialize_result(self, call: Call) -> InitializeResult:
        """Answer the first request of a connection; must not wait."""
        ...

    def cell_of(self, pid: int) -> ConfinedAs | None:
        """Return the live cell that holds a process; None if none is known to.

        Called while the process is held by a pidfd. Ancestry may name the cell but
        must not be all that says "confined": that is decided already.
        """
        ...

    def reach_of_task(self, caller: Caller, task_id: str) -> ConfinedAs | None:
        """Return session and mode of a task of the caller's uid; None if unknown."""
        ...

    def refused(self, caller: Caller, method: str, error: Refused) -> None:
        """Hear of a confined caller that wanted what it may not; once a process."""
        ...
