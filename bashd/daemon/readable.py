"""Many descriptors behind one wait: who is readable gets called.

For a task that reads on behalf of others. A task of its own for each descriptor costs
more than most of them ever have to say; here it costs one epoll_ctl.
"""

from __future__ import annotations

import select
from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

_MOST_AT_ONCE: Final = 64


class Readable:
    """Descriptors that one task waits for; owns one of its own.

    Raises:
        OSError: There is no descriptor left.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[], None]] = {}

    def add(self, fd: int, callback: Callable[[], None]) -> None:
        """Call *callback* whenever *fd* is readable or at its end, until `remove`.

        Raises:
            OSError: The user watches as many descriptors as they may.
        """
        self._epoll.register(fd, select.EPOLLIN)
        self._callbacks[fd] = callback

    def remove(self, fd: int) -> None:
        """Forget a descriptor; before it is closed, or its number means another."""
        if self._callbacks.pop(fd, None) is not None and not self._epoll.closed:
            self._epoll.unregister(fd)

    async def wait(self) -> None:
        """Wait until something is readable, and call whom it concerns.

        What a callback raises comes out of here.
        """
        await trio.lowlevel.wait_readable(self._epoll)
        for fd, _ in self._epoll.poll(0, _MOST_AT_ONCE):
            # One that was called before may have removed others.
            callback = self._callbacks.get(fd)
            if callback is not None:
                callback()

    def close(self) -> None:
        """Stop watching everything."""
        self._callbacks.clear()
        self._epoll.close()
