"""Ctrl-C and SIGTERM as events: the first asks a command to end, the second forces it."""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False  # what `typing` would say, without its three milliseconds
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType
    from typing import Final

_CHANCES: Final = 2
"""Signals that are passed on to the daemon: end it, then force it."""


class Interrupts:
    """Counts SIGINT and SIGTERM from its creation until the process ends.

    A signal that was ignored when we started (``nohup``, a background job of a script)
    stays ignored.

    Args:
        numbers: Other signals to count as well, or instead.
    """

    def __init__(
        self, numbers: Sequence[int] = (signal.SIGINT, signal.SIGTERM)
    ) -> None:
        self.count = 0
        self.first: int | None = None
        """Number of the first signal."""
        self.wake_fd, write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        """Readable once a signal has arrived; for poll."""
        signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
        for number in numbers:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._arrived)

    def drain(self) -> None:
        """Make `wake_fd` wait for the next signal."""
        try:
            os.read(self.wake_fd, 4096)
        except BlockingIOError:
            return

    @property
    def exit_status(self) -> int:
        """What a process ended by the first signal would leave: 130 or 143."""
        return 128 + (self.first or signal.SIGINT)

    def _arrived(self, number: int, _: FrameType | None) -> None:
        self.count += 1
        if self.first is None:
            self.first = number
        if self.count > _CHANCES:
            # Whoever asks once more wants out, whatever the daemon does.
            os._exit(self.exit_status)
