"""What waits to be sent on one connection: never lost, never unbounded, never in the way.

A frame is sent at once if the socket takes it, which is nearly always; what it does
not take waits here until the client reads. Nobody waits for that unless they ask to
(`wait_below`), so a client that does not read stalls no handler and no other client.
"""

from __future__ import annotations

import socket
from collections import deque
from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

    from bashd.daemon.quota import Holding

# As a plain number: to Python these are enumerations, and costly to combine.
_SEND: Final = int(socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)


class Outbox:
    """The sending side of one connection.

    Args:
        sock: Connected and non-blocking; not taken over.
        holding: Where unread bytes are counted.
        start: Runs an async function in a nursery that outlives every `put`.
    """

    def __init__(
        self, sock: socket.socket, holding: Holding, start: Callable[..., object]
    ) -> None:
        self._sock = sock
        self._holding = holding
        self._start = start
        self._waiting: deque[memoryview] = deque()
        self._drained = trio.lowlevel.ParkingLot()
        self.pending_bytes = 0
        """Accepted from handlers, not yet taken by the socket."""
        self.broken = False
        """The client is gone: everything put from now on is dropped."""

    def put(self, frame: bytes) -> None:
        """Send *frame* after everything put before it."""
        if self.broken:
            return
        rest = memoryview(frame)
        if not self._waiting:
            rest = rest[self._send(rest) :]
            if not rest or self.broken:
                return
            self._start(self._flush)
        self._waiting.append(rest)
        self._count(len(rest))

    async def wait_below(self, limit_bytes: int) -> None:
        """Wait until fewer than *limit_bytes* are pending or the client is gone."""
        while self.pending_bytes >= limit_bytes and not self.broken:
            await self._drained.park()

    def discard(self) -> None:
        """Drop what is pending and everything to come."""
        self.broken = True
        self._waiting.clear()
        self._count(-self.pending_bytes)
        self._drained.unpark_all()

    async def _flush(self) -> None:
        while self._waiting:
            try:
                await trio.lowlevel.wait_writable(self._sock)
            except trio.ClosedResourceError:
                return
            while self._waiting and (sent := self._send(self._waiting[0])):
                self._count(-sent)
                if sent < len(self._waiting[0]):
                    self._waiting[0] = self._waiting[0][sent:]
                else:
                    self._waiting.popleft()
            self._drained.unpark_all()

    def _send(self, data: memoryview) -> int:
        """Return how much the socket took."""
        try:
            return self._sock.send(data, _SEND)
        except BlockingIOError:
            return 0
        except OSError:
            # EPIPE or ECONNRESET: the reader of this connection learns it as well.
            self.discard()
            return 0

    def _count(self, change: int) -> None:
        self.pending_bytes += change
        self._holding.hold(change)
