"""Bounded moves of bytes from a pipe, made of plain numbers.

A move may run in a worker thread while the daemon's own thread goes on. It therefore
knows no store and no budget, only descriptors, offsets and bounds; what it did comes
back as a value that the store takes in (``StreamStore.commit``).

Pipe to file goes by splice(2): a byte is either still in the pipe or already in the
file, never in this process alone, so that killing the daemon loses none. But the kernel
holds the pipe while it writes the file, and whoever writes to it waits for that; so a
stream that keeps coming goes through a second pipe (`Relay`), which takes over the
pages and copies nothing.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import time
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

from bashd.daemon.room import RESERVE, descriptors_left
from bashd.launcher.kernel import punch_hole

if TYPE_CHECKING:
    from collections.abc import Callable

READ_BYTES = 64 * 1024
"""One read: the capacity of a pipe."""

WIDE_BYTES = 1024 * 1024
"""What the pipes of a heavy stream hold: with 64 KiB writer and worker wake each other up
for every 16 pages. The most that is allowed without privilege. Source: pipe(7)."""


class End(Enum):
    """Why a move came to its end."""

    BOUND = "bound"
    """Its bytes or its time were used up; there may be more."""
    EMPTY = "empty"
    """The pipe is empty and still open."""
    EOF = "eof"
    FAILED = "failed"
    """The file could not take it; the bytes are still in the pipe."""


@dataclass(frozen=True, slots=True)
class Moved:
    """What a move did."""

    count: int
    """Bytes that left the pipe."""
    end: End
    errno: int = 0
    """Why it failed."""
    tail: bytes = b""
    """The last of the bytes, where they went nowhere (see `Skim`)."""
    hole_refused: bool = False
    """The file system cannot punch holes."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a move may go on; the default never waits."""

    total_s: float = 0.0
    """Seconds after which it stops at the next opportunity; 0 means no bound."""
    idle_s: float = 0.0
    """Seconds it waits for a pipe that has run empty."""


INLINE = Patience()
"""For the daemon's own thread: stop at the first empty pipe."""


class Relay:
    """A second pipe between a stream's pipe and its file; owns both its ends.

    Raises:
        OSError: Descriptors are scarce, or its user has no room for wide pipes: then
            those of others are not to suffer. Source: pipe(7), pipe-user-pages-soft.
    """

    def __init__(self) -> None:
        if descriptors_left() < RESERVE:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        self.read_fd, self._write_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.held = 0
        """Bytes in it, unless the keeper has read from its copy: they come before
        those in the stream's pipe."""
        widen(self.read_fd)
        if fcntl.fcntl(self.read_fd, fcntl.F_GETPIPE_SZ) < WIDE_BYTES:
            self.close()
            raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))

    def take_over(self, pipe_fd: int, limit: int) -> int:
        """Move at most *limit* bytes of a pipe in here; 0 at its end.

        Raises:
            BlockingIOError: The pipe is empty.
        """
        count = os.splice(pipe_fd, self._write_fd, limit, flags=os.SPLICE_F_NONBLOCK)
        self.held += count
        return count

    def give(self, take: Callable[[int, int], int], limit: int) -> int:
        """Have *take* move at most *limit* bytes from a descriptor; return how many.

        0: the rest is gone. Its keeper, which has a copy, is to leave it alone, but is
        not trusted to.
        """
        try:
            count = take(self.read_fd, min(limit, self.held))
        except BlockingIOError:
            count = 0
        self.held = self.held - count if count else 0
        return count

    def close(self) -> None:
        """Close it, with what is in it."""
        os.close(self.read_fd)
        os.close(self._write_fd)


def widen(pipe_fd: int) -> None:
    """Let a pipe hold `WIDE_BYTES`, if its user has room for that."""
    with contextlib.suppress(OSError):
        fcntl.fcntl(pipe_fd, fcntl.F_SETPIPE_SZ, WIDE_BYTES)


@dataclass(frozen=True, slots=True)
class Transfer:
    """Moves bytes from a pipe into a file at a known place."""

    file_fd: int
    offset: int
    limit: int
    """Most bytes to move."""
    hole: tuple[int, int] | None = None
    """Offset and length to give back to the file system before."""

    def run(
        self, pipe_fd: int, patience: Patience = INLINE, relay: Relay | None = None
    ) -> Moved:
        """Do it. *pipe_fd* is non-blocking.

        *relay* is empty before, and afterwards unless the file has failed.
        """
        if self.hole is not None:
            try:
                punch_hole(self.file_fd, *self.hole)
            except OSError as error:
                return Moved(0, End.FAILED, error.errno or 0, hole_refused=True)

        def step(done: int) -> int:
            left = self.limit - done
            if relay is None:
                return self._splice(pipe_fd, left, done)
            return self._through(relay, pipe_fd, left, done)

        return _repeat(step, pipe_fd, self.limit, patience)

    def _through(self, relay: Relay, pipe_fd: int, limit: int, done: int) -> int:
        """Move what the pipe holds, or the relay still does; 0 at the end of both."""
        if not relay.held and not relay.take_over(pipe_fd, limit):
            return 0
        moved = 0
        while relay.held:
            splice = partial(self._splice, done=done + moved)
            try:
                moved += relay.give(splice, relay.held)
            except OSError:
                if moved:
                    break  # the next step meets it again, and tells
                raise
        if not moved:
            raise BlockingIOError
        return moved

    def _splice(self, pipe_fd: int, count: int, done: int) -> int:
        return os.splice(
            pipe_fd,
            self.file_fd,
            count,
            offset_dst=self.offset + done,
            flags=os.SPLICE_F_NONBLOCK,
        )


@dataclass(frozen=True, slots=True)
class Skim:
    """Takes bytes from a pipe and keeps only the last of them in memory."""

    keep: int
    """How many of the last bytes to keep."""
    limit: int

    def run(self, pipe_fd: int, patience: Patience = INLINE) -> Moved:
        """Do it. *pipe_fd* is non-blocking."""
        kept = bytearray()

        def step(done: int) -> int:
            data = os.read(pipe_fd, min(READ_BYTES, self.limit - done))
            if len(data) >= self.keep:
                kept[:] = data[-self.keep :]
            else:
                kept.extend(data)
                del kept[: -self.keep]
            return len(data)

        moved = _repeat(step, pipe_fd, self.limit, patience)
        return Moved(moved.count, moved.end, moved.errno, bytes(kept))


def _repeat(
    step: Callable[[int], int], pipe_fd: int, limit: int, patience: Patience
) -> Moved:
    deadline = time.monotonic() + patience.total_s if patience.total_s else None
    done = 0
    while done < limit:
        try:
            count = step(done)
        except BlockingIOError:
            if not patience.idle_s or not _wait_readable(pipe_fd, patience.idle_s):
                return Moved(done, End.EMPTY)
            count = -1
        except OSError as error:
            return Moved(done, End.FAILED, error.errno or 0)
        if count == 0:
            return Moved(done, End.EOF)
        done += max(count, 0)
        if deadline is not None and time.monotonic() >= deadline:
            break
    return Moved(done, End.BOUND)


def _wait_readable(fd: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(seconds * 1000))
