"""What the daemon tells a cell's keeper, in order, none of it lost for want of room.

A socket holds some 280 short messages. A keeper that ends a large tree does not read
for a moment, and hundreds of tasks may be started or killed in that moment: what finds
no room waits here. A keeper that reads nothing for long does not live, and is cut off.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Sequence
from typing import Final

import trio

_STALL_S: Final = 30.0
"""Longer than anything a keeper does between two messages."""


class Orders:
    """The sending half of a control socket.

    Args:
        channel: Non-blocking; stays the caller's.
    """

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._queue: deque[tuple[bytes, list[int]]] = deque()
        self._overflow = trio.Event()

    def send(self, message: bytes, fds: Sequence[int] = ()) -> None:
        """Send now if there is room, else later; *fds* stay the caller's.

        A keeper that is gone is noticed by whoever reads from it.
        """
        if not self._queue:
            try:
                self._send_now(message, fds)
            except BlockingIOError:
                self._overflow.set()
            except OSError:
                return
            else:
                return
        try:
            copies = [os.dup(fd) for fd in fds]
        except OSError:
            return  # as if it were lost on the way: whoever waits for it has a timeout
        self._queue.append((message, copies))

    def _send_now(self, message: bytes, fds: Sequence[int]) -> None:
        if fds:
            socket.send_fds(self._channel, [message], fds)
        else:
            self._channel.send(message)

    async def serve(self) -> None:
        """Send what had to wait, until cancelled or the keeper is gone."""
        try:
            while True:
                await self._overflow.wait()
                with trio.move_on_after(_STALL_S) as patience:
                    await trio.lowlevel.wait_writable(self._channel)
                if patience.cancelled_caught:
                    self._channel.shutdown(socket.SHUT_RDWR)
                    return
                self._flush()
                if not self._queue:
                    self._overflow = trio.Event()
        except OSError:
            return
        finally:
            self._forget()

    def _flush(self) -> None:
        while self._queue:
            message, fds = self._queue[0]
            try:
                self._send_now(message, fds)
            except BlockingIOError:
                return
            self._drop()

    def _drop(self) -> None:
        for fd in self._queue.popleft()[1]:
            os.close(fd)

    def _forget(self) -> None:
        while self._queue:
            self._drop()
