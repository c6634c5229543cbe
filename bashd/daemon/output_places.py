"""The two places where a stream can be kept.

`InMemory`: a window of the last bytes, and once that overflows a spill file beside
it that is written from here. `InFile`: nothing here, everything in a file that is
spliced into; past its longest size the file *slides*: all but the last window is
punched out of it, which keeps offsets true and the file's size the stream's length
without a second file or a rename.

A file that cannot go on (full disk, cap reached, no descriptor left) is reported by
False from `InFile`, and simply dropped by `InMemory`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bashd.core.output import (
    Span,
    Spill,
    TailWindow,
    first_in_window,
    next_spill,
    span_to_read,
)
from bashd.daemon.output_budget import BLOCK_BYTES
from bashd.daemon.output_file import HOLE_STEP_BYTES
from bashd.daemon.transfer import Skim

if TYPE_CHECKING:
    from collections.abc import Callable

    from bashd.daemon.output_file import OutputFile
    from bashd.daemon.transfer import Moved, Transfer


class InMemory:
    """A window, and the complete stream in a spill file where one is allowed.

    Args:
        window: What is kept so far.
        max_bytes: Size of the window.
        max_spill_bytes: Longest stream that a spill file is kept for.
        new_file: Reserves the spill file; None where there must not be one.
        on_lost: Called when the spill file went for want of room.
    """

    def __init__(
        self,
        window: TailWindow,
        *,
        max_bytes: int,
        max_spill_bytes: int = 0,
        new_file: Callable[[], OutputFile] | None = None,
        on_lost: Callable[[], None] | None = None,
    ) -> None:
        self._window = window
        self._max_bytes = max_bytes
        self._max_spill_bytes = max_spill_bytes
        self._new_file = new_file
        self._on_lost = on_lost
        self.file: OutputFile | None = None
        self.intact = True

    @property
    def total(self) -> int:
        """Length of the stream."""
        return self._window.total

    @property
    def window_start(self) -> int:
        """Offset of the oldest byte in the window."""
        return self._window.start

    @property
    def may_be_whole(self) -> bool:
        """Whether a file has, or can still get, the complete stream."""
        return self._new_file is not None

    def write(self, data: bytes) -> None:
        """Take the next bytes."""
        if self._new_file is not None:
            self._spill(data, self._new_file)
        self._window.append(data)

    def _spill(self, data: bytes, new_file: Callable[[], OutputFile]) -> None:
        step = next_spill(
            self.total,
            len(data),
            max_bytes=self._max_bytes,
            max_spill_bytes=self._max_spill_bytes,
            spilled=self.file is not None,
        )
        if step is Spill.DROP:
            self.delete()
        if step not in {Spill.CREATE, Spill.APPEND}:
            return
        held = b""
        if self.file is None:
            self.file, held = new_file(), self._window.tail()
        offset = self.total - len(held)
        if not (self.file.make() and self.file.append(held + data, offset)):
            self.lose_file()

    def skim(self, limit: int) -> Skim | None:
        """Plan a move that keeps only the window; None where `write` has to see all."""
        return Skim(self._max_bytes, limit) if self._new_file is None else None

    def skimmed(self, tail: bytes, count: int) -> None:
        """Take *count* bytes of which only the last, *tail*, were kept."""
        if count:
            self._window.append(tail, skipped=count - len(tail))

    def read(self, offset: int) -> Span:
        """Return what came since *offset*; the whole window where that is gone."""
        return self._window.read(offset)

    def read_range(self, offset: int, limit: int) -> Span:
        """Return at most *limit* bytes at *offset*, or at the oldest kept byte."""
        if self.file is None or not self.intact:
            return self._window.slice(offset, limit)
        start = min(offset, self.total)
        return Span(self.file.read(start, limit), start, lossy=False)

    def finish(self) -> None:
        """The stream has ended."""
        if self.file is not None:
            self.intact = self.file.finish(self.total)

    def lose_file(self, *, urgent: bool = False) -> None:
        """Part with the spill file for want of room."""
        self.delete(urgent=urgent)
        if self._on_lost is not None:
            self._on_lost()

    def delete(self, *, urgent: bool = False) -> None:
        """Remove the spill file; none is made from here on."""
        self._new_file = None
        if self.file is not None:
            self.file.delete(urgent=urgent)
            self.file = None


class InFile:
    """A file that every byte goes to.

    Args:
        file: Made already or not.
        total: How long it is.
        max_bytes: Size of the window that readers are shown.
        max_spill_bytes: Longest stream that is kept whole.
    """

    def __init__(
        self,
        file: OutputFile,
        *,
        max_bytes: int,
        max_spill_bytes: int,
        total: int = 0,
    ) -> None:
        self.file = file
        self.total = total
        self.intact = True
        self._max_bytes = max_bytes
        self._max_spill_bytes = max_spill_bytes

    @property
    def window_start(self) -> int:
        """Offset of the oldest byte that a reader of the tail is shown."""
        return first_in_window(self.total, self._max_bytes)

    @property
    def may_be_whole(self) -> bool:
        """Whether the file is short enough to be kept whole."""
        return self.total <= self._max_spill_bytes

    @property
    def _needed_from(self) -> int:
        return 0 if self.may_be_whole else self.window_start

    def write(self, data: bytes) -> bool:
        """Append *data*; False (and nothing taken) when the file cannot go on."""
        if not self.file.append(data, self.total):
            return False
        self.total += len(data)
        return self._slide(HOLE_STEP_BYTES)

    def plan(self, limit: int) -> Transfer | None:
        """Plan a move of at most *limit* bytes; None when the file cannot go on."""
        return self.file.plan(self.total, limit, keep_from=self._needed_from)

    def took(self, move: Transfer, moved: Moved) -> bool:
        """Take in what *move* did; False when the file cannot go on."""
        self.total += moved.count
        return self.file.took(move, moved)

    def last_of(self, move: Transfer, moved: Moved) -> bytes:
        """Return the end of what *move* did, up to a window."""
        keep = min(moved.count, self._max_bytes)
        return self.file.read(move.offset + moved.count - keep, keep)

    def tail(self) -> bytes:
        """Return the last window."""
        return self.read(self.window_start).data

    def read(self, offset: int) -> Span:
        """Return what came since *offset*; the whole window where that is gone."""
        start, lossy = span_to_read(offset, self.total, self.window_start)
        data = self.file.read(start, self.total - start)
        if start + len(data) < self.total:
            # Its owner cut the file short: never offer the same gap twice.
            return Span(data, self.total - len(data), lossy=True)
        return Span(data, start, lossy)

    def read_range(self, offset: int, limit: int) -> Span:
        """Return at most *limit* bytes at *offset*, or at the oldest kept byte."""
        start = min(max(offset, self._needed_from), self.total)
        data = self.file.read(start, min(limit, self.total - start))
        return Span(data, start, start > offset)

    def finish(self) -> None:
        """The stream has ended."""
        if self.file.made:
            self._slide(BLOCK_BYTES)
            self.intact = self.file.finish(self.total)

    def _slide(self, step: int) -> bool:
        if self.may_be_whole:
            return True
        return self.file.slide(self._needed_from, self.total, step=step)
