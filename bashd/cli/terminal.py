"""Writing a command's bytes: raw to files and pipes, made visible on terminals.

On a terminal a control character could move the cursor over what bashd itself prints,
set the clipboard or reorder what is read, so all but newline and tab are spelled out. A
carriage return begins a new line there: what a progress bar drew stays readable.
"""

from __future__ import annotations

import codecs
import io
import os
import re
import select
import stat

TYPE_CHECKING = False  # what `typing` would say, without its three milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Final

_TURN_BYTES: Final = select.PIPE_BUF
"""Bytes that poll promises room for. Source: pipe(7), POLLOUT means PIPE_BUF free."""

_UNSAFE: Final = (
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 but tab and newline, DEL, C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # bidirectional controls
    "\u2028\u2029\ufff9-\ufffb\U000e0000-\U000e007f"  # breaks, annotations, tags
    "\ud800-\udfff"  # halves of surrogate pairs
    "]"
)


class OutputClosedError(Exception):
    """Nobody reads this descriptor any more."""


class Sink:
    """One of our own standard streams.

    Args:
        fd: Descriptor, blocking.
        may_wait: Says whether to wait for a reader that takes nothing now; asked
            again when a signal has arrived.
        wake_fd: Becomes readable when a signal arrives; None where signals raise.
    """

    def __init__(
        self,
        fd: int,
        may_wait: Callable[[], bool] = lambda: True,
        wake_fd: int | None = None,
    ) -> None:
        self.fd = fd
        self.at_line_start = True
        self._may_wait = may_wait
        kind = os.fstat(fd).st_mode
        self._always_takes = stat.S_ISREG(kind)
        self.can_close = stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)
        """Whether poll can tell that the reader has gone."""
        self.is_terminal = stat.S_ISCHR(kind) and os.isatty(fd)
        self._decoder = _terminal_decoder() if self.is_terminal else None
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)
        if wake_fd is not None:
            self._poll.register(wake_fd, select.POLLIN)

    def write(self, data: bytes) -> None:
        """Write a command's bytes.

        Raises:
            OutputClosedError: Nobody reads.
            OSError: The disk is full, or the like.
        """
        if self._decoder is not None:
            data = visible(self._decoder.decode(data)).encode()
        self._write_all(data)

    def finish(self) -> None:
        """Write what an unfinished character at the very end left over."""
        if self._decoder is not None:
            self._write_all(visible(self._decoder.decode(b"", final=True)).encode())

    def write_line(self, text: str) -> None:
        """Write a line of bashd's own, on a line of its own."""
        start = "" if self.at_line_start else "\n"
        self._write_all(f"{start}{visible(text)}\n".encode(errors="backslashreplace"))

    def _write_all(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            if not self._always_takes and not self._wait_writable():
                return
            turn = rest if self._always_takes else rest[:_TURN_BYTES]
            try:
                rest = rest[os.write(self.fd, turn) :]
            except BrokenPipeError:
                raise OutputClosedError from None
            except BlockingIOError:
                # Somebody made the descriptor non-blocking; poll says when to go on.
                continue
        if data:
            self.at_line_start = data.endswith(b"\n")

    def _wait_writable(self) -> bool:
        """Wait until the reader takes something; False if it is not to be waited for."""
        while True:
            ready = self._poll.poll(None if self._may_wait() else 0)
            if any(fd == self.fd for fd, _ in ready):
                return True
            if not self._may_wait():
                return False


def _terminal_decoder() -> io.IncrementalNewlineDecoder:
    utf8 = codecs.getincrementaldecoder("utf-8")("backslashreplace")
    return io.IncrementalNewlineDecoder(utf8, translate=True)


def visible(text: str) -> str:
    """Return *text* with what a terminal would obey, or not show, spelled out."""
    return re.sub(_UNSAFE, _spelled, text)


def visible_line(text: str) -> str:
    """Return *text* as `visible` does, on one line and without tabs."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def _spelled(match: re.Match[str]) -> str:
    return match.group().encode("unicode_escape", "surrogatepass").decode("ascii")


def open_missing_streams() -> None:
    """Give descriptors 0, 1 and 2 something to be, so that no socket takes their place."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            # The lowest free descriptor is this one.
            os.open(os.devnull, os.O_RDWR)
