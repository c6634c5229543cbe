"""What nobody waits for: done when those who wait for something have had their turn.

trio's ``run_sync_soon`` is made for other threads and signal handlers: every call costs
two system calls and a turn of the loop. From within the loop a task that is woken does
for less.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Callable


class _Afterwards:
    """What is to be done, in order."""

    def __init__(self) -> None:
        self._todo: deque[Callable[[], object]] = deque()
        self._idle = trio.lowlevel.ParkingLot()

    def put(self, work: Callable[[], object]) -> None:
        self._todo.append(work)
        self._idle.unpark_all()

    async def serve(self) -> None:
        try:
            while True:
                self._do_all()
                await self._idle.park()
        finally:
            self._do_all()

    def _do_all(self) -> None:
        while self._todo:
            self._todo.popleft()()


_running: trio.lowlevel.RunVar[_Afterwards] = trio.lowlevel.RunVar("afterwards")


def afterwards(work: Callable[..., object], *args: object) -> None:
    """Call *work* after the current task's turn; what it raises ends the daemon.

    At the end of the loop what is left is still done.
    """
    try:
        running = _running.get()
    except LookupError:
        running = _Afterwards()
        _running.set(running)
        trio.lowlevel.spawn_system_task(running.serve)
    running.put(partial(work, *args))
