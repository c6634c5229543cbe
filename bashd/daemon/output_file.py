"""One output file: its descriptor, its place on the disk and what it is charged.

The file is made at the stream's first byte, so that the many streams that never say
anything cost nothing; its name is reserved before, so that it can be written down
first. Whatever goes wrong with it comes back as False: the store then goes on
without a file.
"""

from __future__ import annotations

import contextlib
import os
from functools import partial
from typing import TYPE_CHECKING

import trio

from bashd.daemon.output_budget import BLOCK_BYTES
from bashd.daemon.transfer import Moved, Transfer
from bashd.launcher.kernel import punch_hole

if TYPE_CHECKING:
    from bashd.daemon.output_budget import Account, Holder, OutputBudget
    from bashd.daemon.output_directory import OutputDirectory

HOLE_STEP_BYTES = 1024 * 1024
"""Slide only when this much has become free: one system call in many."""

_HOLE_MAX_BYTES = 16 * 1024 * 1024
"""Most to free in one call; the kernel does not give its core away meanwhile."""

_LARGE_BYTES = 1024 * 1024
"""Above this a file is freed by another thread: 64 MiB took 6 to 65 ms (ext4)."""


class OutputFile:
    """A file that a stream is appended to, read by offset.

    Args:
        directory: The folder it lies in.
        name: Its name there (`OutputDirectory.reserve_name`).
        budget: What it counts against.
        holder: Told when the budget needs its blocks.
    """

    __slots__ = (
        "_account",
        "_budget",
        "_directory",
        "_fd",
        "_holder",
        "_slid_to",
        "name",
    )

    def __init__(
        self,
        directory: OutputDirectory,
        name: str,
        *,
        budget: OutputBudget,
        holder: Holder,
    ) -> None:
        self.name = name
        self._directory = directory
        self._budget = budget
        self._holder = holder
        self._account: Account | None = None
        self._fd = -1
        self._slid_to = 0

    @property
    def path(self) -> str:
        """Absolute path of the file, made yet or not."""
        return self._directory.path_of(self.name)

    @property
    def made(self) -> bool:
        """Whether it exists."""
        return self._account is not None

    def make(self) -> bool:
        """Make it if it does not exist yet; False where that is impossible."""
        if self._account is not None:
            return True
        account = self._budget.open(self._holder)
        while True:
            try:
                self._fd = self._directory.create(self.name)
            except OSError as error:
                if not account.make_room_on_disk(error.errno or 0):
                    account.close()
                    return False
            else:
                self._account = account
                return True

    def adopt(self, *, may_have_slid: int) -> int:
        """Open what an earlier daemon left and return its size in bytes.

        Args:
            may_have_slid: A larger file has a hole at its start.

        Raises:
            OSError: It is gone or not the peer's own plain file.
        """
        self._fd = self._directory.open(self.name)
        size = os.fstat(self._fd).st_size
        if size > may_have_slid:
            with contextlib.suppress(OSError):  # nothing but hole, or no such call
                self._slid_to = os.lseek(self._fd, 0, os.SEEK_DATA)
        self._account = self._budget.open(self._holder)
        self.charge(size)
        return size

    def charge(self, size: int) -> None:
        """Have a file of *size* bytes charged for what of it is on the disk."""
        if self._account is not None:
            self._account.hold(size - self._slid_to)

    def append(self, data: bytes, offset: int) -> bool:
        """Write all of *data* at *offset*, the end; False if it cannot be."""
        if self._account is None:
            return False
        if not self._account.reserve(len(data), at_least=len(data)):
            return False
        while True:
            try:
                _write_all(self._fd, data, offset)
            except OSError as error:
                if not self._account.make_room_on_disk(error.errno or 0):
                    return False
            else:
                self.charge(offset + len(data))
                return True

    def plan(self, offset: int, limit: int, *, keep_from: int) -> Transfer | None:
        """Plan a move to *offset*, the end, of at most *limit* bytes.

        Args:
            offset: Where it goes on.
            limit: Most bytes to move; may be cut by the budget.
            keep_from: What lies before is needed no more.

        Returns:
            None when the budget has no byte left.
        """
        granted = self._account.reserve(limit) if self._account is not None else 0
        if not granted:
            return None
        hole = self._hole(keep_from, HOLE_STEP_BYTES)
        return Transfer(self._fd, offset, granted, hole)

    def took(self, move: Transfer, moved: Moved) -> bool:
        """Take in what *move* did; False when the file cannot go on."""
        if self._account is None or moved.hole_refused:
            return False
        if move.hole is not None:
            self._slid_to = sum(move.hole)
        self.charge(move.offset + moved.count)
        return not moved.errno or self._account.make_room_on_disk(moved.errno)

    def slide(self, keep_from: int, size: int, *, step: int = HOLE_STEP_BYTES) -> bool:
        """Give back what lies before *keep_from*; False if this disk cannot."""
        while (hole := self._hole(keep_from, step)) is not None:
            try:
                punch_hole(self._fd, *hole)
            except OSError:
                return False
            self._slid_to = sum(hole)
        self.charge(size)
        return True

    def _hole(self, keep_from: int, step: int) -> tuple[int, int] | None:
        length = keep_from - keep_from % BLOCK_BYTES - self._slid_to
        if length < step:
            return None
        return self._slid_to, min(length, _HOLE_MAX_BYTES)

    def read(self, offset: int, limit: int) -> bytes:
        """Return the bytes at *offset*; fewer where the file is shorter or gone."""
        if self._account is None or limit <= 0:
            return b""
        try:
            if self._fd >= 0:
                return _read_all(self._fd, offset, limit)
            fd = self._directory.open(self.name)
            try:
                return _read_all(fd, offset, limit)
            finally:
                os.close(fd)
        except OSError:
            return b""

    def finish(self, size: int) -> bool:
        """Close it for good; say whether all *size* bytes can be read by its name."""
        if self._account is not None:
            self._account.finish()
        try:
            intact = os.fstat(self._fd).st_size == size
            intact = intact and self._directory.holds(self.name, self._fd)
        except OSError:
            intact = False
        # A file system that writes late (NFS) reports the loss only here.
        return self.close() and intact

    def close(self) -> bool:
        """Close it and leave it where it is; say whether that went well."""
        fd, self._fd = self._fd, -1
        try:
            if fd >= 0:
                os.close(fd)
        except OSError:
            return False
        return True

    def empty(self) -> None:
        """Give all its blocks back while another thread still writes to it."""
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, 0)
        if self._account is not None:
            self._account.close()

    def delete(self, *, urgent: bool = False) -> None:
        """Close and remove it; what fails here is of no interest any more.

        Args:
            urgent: Its blocks are needed before this returns.
        """
        account, self._account = self._account, None
        if account is None:
            return
        with contextlib.suppress(OSError):
            if self._fd < 0:
                self._fd = self._directory.open(self.name)
        self._directory.remove(self.name)
        large = account.charged_bytes > _LARGE_BYTES
        account.close()
        if large and not urgent and self._fd >= 0:
            # The last close of a nameless file frees its blocks.
            trio.lowlevel.start_thread_soon(partial(os.close, self._fd), _ignore)
            self._fd = -1
        self.close()


def _ignore(_: object) -> None:
    """Take the outcome of a close that nobody waits for."""


def _write_all(fd: int, data: bytes, offset: int) -> None:
    rest = memoryview(data)
    while rest:
        written = os.pwrite(fd, rest, offset)
        rest, offset = rest[written:], offset + written


def _read_all(fd: int, offset: int, limit: int) -> bytes:
    parts: list[bytes] = []
    while limit > 0:
        part = os.pread(fd, limit, offset)
        if not part:
            break
        parts.append(part)
        limit -= len(part)
        offset += len(part)
    return b"".join(parts)
