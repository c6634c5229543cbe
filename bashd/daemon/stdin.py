"""The stdin of one running command, as it comes from its client.

Pulled by the handler, pushed by the connection, bounded by telling the client late: an
``exec.stdin`` that was sent as a request is answered when its bytes have room here, so
a client that keeps one open at a time is never faster than the command reads. Bytes
that come without asking are kept up to a bound; beyond it the run is aborted, because a
stdin with a hole in it would be worse.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    from bashd.daemon.quota import Holding

ROOM_BYTES: Final = 256 * 1024
"""Queued bytes up to which more is asked for; four times a pipe's capacity."""
FLOOD_BYTES: Final = 16 * 1024 * 1024
"""Queued bytes at which a client that does not wait is stopped."""

Taken = Callable[[], None]


class StdinFeed(trio.abc.ReceiveChannel[bytes]):
    """Chunks of stdin in order, then the end of the channel."""

    def __init__(self, holding: Holding) -> None:
        self._holding = holding
        self._chunks: deque[bytes] = deque()
        self._asking: deque[Taken] = deque()
        self._arrived = trio.lowlevel.ParkingLot()
        self._queued_bytes = 0
        self._ended = False
        self._closed = False

    def push(self, data: bytes, taken: Taken | None = None) -> bool:
        """Queue *data*, and call *taken* once it has room or nobody will read it.

        Returns:
            False if the client floods: the run must be aborted.
        """
        if data and not self._closed and not self._ended:
            self._chunks.append(data)
            self._count(len(data))
            self._arrived.unpark()
        if taken is not None:
            self._asking.append(taken)
        self._answer()
        return self._queued_bytes <= FLOOD_BYTES

    def end(self) -> None:
        """Say that nothing more will come."""
        self._ended = True
        self._arrived.unpark_all()

    async def receive(self) -> bytes:
        """Return the next chunk, waiting for it.

        Raises:
            trio.EndOfChannel: The client ended its stdin.
        """
        await trio.lowlevel.checkpoint()
        while not self._chunks:
            if self._ended or self._closed:
                raise trio.EndOfChannel
            await self._arrived.park()
        data = self._chunks.popleft()
        self._count(-len(data))
        self._answer()
        return data

    async def aclose(self) -> None:
        """Stop reading; see `close`."""
        self.close()
        await trio.lowlevel.checkpoint()

    def close(self) -> None:
        """Drop what is queued and whatever comes; all who ask are answered."""
        self._closed = True
        self._chunks.clear()
        self._count(-self._queued_bytes)
        self._answer()
        self._arrived.unpark_all()

    def _answer(self) -> None:
        while self._asking and self._queued_bytes <= ROOM_BYTES:
            self._asking.popleft()()

    def _count(self, change: int) -> None:
        self._queued_bytes += change
        self._holding.hold(change)
