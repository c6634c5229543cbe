"""Questions about commands that wait for a person, and answers to them.

Whoever watches is asked; a question has one answer, and its call reads it once. A
command that is confined by the daemon can neither see questions nor answer them.
"""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any, Final

import bashd.client.calls as calls  # noqa: PLR0402 - `from` would import ourselves
from bashd.protocol.codec import from_wire
from bashd.protocol.messages import ApprovalAsked, ApprovalSettled

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterable, Callable

    from bashd.client.calls import Call
    from bashd.client.connection import Connection
    from bashd.protocol.messages import ApprovalInfo

ApprovalEvent = ApprovalAsked | ApprovalSettled

ALLOWED_ONCE: Final = "allowed-once"
REJECTED: Final = "rejected"


class Approvals:
    """The questions of the caller's sessions, blocking."""

    def __init__(self, ask: Callable[[Call[Any]], Any]) -> None:
        self._ask = ask

    def list(self) -> tuple[ApprovalInfo, ...]:
        """Return the questions that wait, oldest first. Escape before you show them."""
        return self._ask(calls.list_approvals())

    def approve(self, approval_id: str) -> None:
        """Let the command of one question run, once.

        Raises:
            UnknownApprovalError: It was answered or withdrawn meanwhile.
        """
        self._ask(calls.decide_approval(approval_id, ALLOWED_ONCE))

    def reject(self, approval_id: str) -> None:
        """Refuse one question.

        Raises:
            UnknownApprovalError: It was answered or withdrawn meanwhile.
        """
        self._ask(calls.decide_approval(approval_id, REJECTED))


class AsyncApprovals:
    """The questions of the caller's sessions, for coroutines."""

    def __init__(self, connection: Connection) -> None:
        self._ask = connection.ask
        self._watchers: list[_Watcher] = []

    async def list(self) -> tuple[ApprovalInfo, ...]:
        """Return the questions that wait, oldest first. Escape before you show them."""
        return await self._ask(calls.list_approvals())

    async def approve(self, approval_id: str) -> None:
        """Let the command of one question run, once.

        Raises:
            UnknownApprovalError: It was answered or withdrawn meanwhile.
        """
        await self._ask(calls.decide_approval(approval_id, ALLOWED_ONCE))

    async def reject(self, approval_id: str) -> None:
        """Refuse one question.

        Raises:
            UnknownApprovalError: It was answered or withdrawn meanwhile.
        """
        await self._ask(calls.decide_approval(approval_id, REJECTED))

    @contextlib.asynccontextmanager
    async def watch(self) -> AsyncGenerator[AsyncIterable[ApprovalEvent]]:
        """Watch within the block; gives what is asked and what was settled.

        Questions that wait already come first; it ends when the daemon goes. From now
        on this connection counts as somebody who answers, until it is closed: whoever
        asks waits for it.
        """
        watcher = _Watcher()
        self._watchers.append(watcher)
        with watcher.send, watcher.events:
            try:
                watcher.begin(await self._ask(calls.watch_approvals()))
                yield watcher.events
            finally:
                self._watchers.remove(watcher)

    def notice(self, method: str, params: dict[str, Any]) -> None:
        """Pass a notification of the daemon on to whoever watches."""
        event: ApprovalEvent
        if method == "approval.asked":
            event = from_wire(ApprovalAsked, params)
        elif method == "approval.settled":
            event = from_wire(ApprovalSettled, params)
        else:
            return
        for watcher in self._watchers:
            watcher.put(event)

    def end(self) -> None:
        """Tell whoever watches that nothing more will come."""
        for watcher in self._watchers:
            watcher.send.close()


class _Watcher:
    """Events on their way to one `AsyncApprovals.watch`."""

    def __init__(self) -> None:
        import anyio  # noqa: PLC0415 - the blocking client does without

        # No bound of its own: the daemon has one on questions that wait.
        self.send, self.events = anyio.create_memory_object_stream[ApprovalEvent](
            math.inf
        )
        self._early: list[ApprovalEvent] | None = []

    def begin(self, waiting: tuple[ApprovalInfo, ...]) -> None:
        """Let the questions that waited go first, then what came meanwhile."""
        early, self._early = self._early or [], None
        for event in [*map(ApprovalAsked, waiting), *early]:
            self.send.send_nowait(event)

    def put(self, event: ApprovalEvent) -> None:
        """Let *event* be next."""
        if self._early is None:
            self.send.send_nowait(event)
        else:
            self._early.append(event)
