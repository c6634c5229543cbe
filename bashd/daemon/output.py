"""Where the bytes of one output stream are kept: the store.

Theory of operation. A store keeps its stream in one of two places (see
`output_places`): in memory (foreground runs, until they overflow), or in a private
file (background tasks, from the first byte on), into which the pipe is spliced, so
that "tail", "since the last read" and "full output" are offsets and a killed daemon
loses no byte. When a file cannot go on, the store moves to memory with
the same last window: output is cut short, a command never hangs, every byte is still
counted.

A store belongs to the daemon's one thread. A worker thread only gets a `Transfer`
(numbers) between `StreamStore.begin` and `StreamStore.commit`; what it may punch out
lies before everything that a reader can be shown meanwhile.
"""

from __future__ import annotations

import os
import select
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bashd.core.output import TailWindow, render
from bashd.daemon.output_budget import OutputBudget
from bashd.daemon.output_directory import OutputDirectory
from bashd.daemon.output_file import OutputFile
from bashd.daemon.output_places import InFile, InMemory
from bashd.daemon.transfer import READ_BYTES, End, Moved, Skim, Transfer

if TYPE_CHECKING:
    from collections.abc import Callable

    from bashd.core.model import StreamOutput
    from bashd.core.output import Span

__all__ = ["OutputBudget", "OutputDirectory", "StoreState", "StreamStore"]


@dataclass(frozen=True, slots=True)
class StoreState:
    """What a new daemon needs to go on with a stream; JSON-ready."""

    label: str
    name: str | None
    """The file's name in its folder; None where nothing is kept in a file."""
    max_bytes: int
    max_spill_bytes: int
    total: int
    """Length of the stream when this was written down."""
    settled: bool


_NOTHING: Final = render(b"", total=0, spill_path=None)


class StreamStore:
    """Keeps one stream within its bounds.

    Args:
        label: ``stdout`` or ``stderr``.
        directory: Where its file goes.
        max_bytes: Size of the window that readers are shown.
        max_spill_bytes: Longest stream that is kept whole.
        file_from_start: Keep every byte in a file, made at the first one.
        budget: What its file counts against.
        on_lost: Called when the file went for want of room: readers lose what is
            not in the window (all, once settled), and `state` has changed.
    """

    def __init__(
        self,
        label: str,
        *,
        directory: OutputDirectory,
        max_bytes: int,
        max_spill_bytes: int,
        file_from_start: bool,
        budget: OutputBudget | None = None,
        on_lost: Callable[[], None] | None = None,
    ) -> None:
        self.label = label
        self._directory = directory
        self._max_bytes = max_bytes
        self._max_spill_bytes = max_spill_bytes
        self._budget = budget or OutputBudget(sys.maxsize)
        self._on_lost = on_lost
        self._may_slide = file_from_start
        self._settled = False
        self._in_flight: InFile | None = None
        self._place: InMemory | InFile
        if file_from_start:
            self._place = self._in_file(self._new_file(), total=0)
        else:
            self._place = InMemory(
                TailWindow(max_bytes),
                max_bytes=max_bytes,
                max_spill_bytes=max_spill_bytes,
                new_file=self._new_file,
                on_lost=on_lost,
            )

    def _new_file(self, name: str | None = None) -> OutputFile:
        name = name or self._directory.reserve_name(self.label)
        return OutputFile(self._directory, name, budget=self._budget, holder=self)

    def _in_file(self, file: OutputFile, *, total: int) -> InFile:
        return InFile(
            file,
            max_bytes=self._max_bytes,
            max_spill_bytes=self._max_spill_bytes,
            total=total,
        )

    def _to_memory(self, held: bytes, total: int) -> InMemory:
        window = TailWindow(self._max_bytes, held=held, total=total)
        self._place = InMemory(window, max_bytes=self._max_bytes)
        return self._place

    @property
    def total(self) -> int:
        """Length of the stream in bytes, kept or not."""
        return self._place.total

    @property
    def spill_path(self) -> str | None:
        """The file with the complete stream, where the window does not hold it all."""
        file = self._whole_file
        return file.path if file and self._place.window_start else None

    @property
    def kept_from(self) -> int:
        """Offset of the oldest byte that `read_range` can return."""
        return 0 if self._whole_file else self._place.window_start

    @property
    def _whole_file(self) -> OutputFile | None:
        file = self._place.file
        whole = self.total <= self._max_spill_bytes and self._place.intact
        return file if file is not None and file.made and whole else None

    def headroom(self, offset: int) -> int:
        """Return how many more bytes may come before a reader at *offset* loses some.

        A file that is given up later, for want of room, cannot be foreseen.
        """
        until = offset + self._max_bytes
        if self._place.may_be_whole:
            until = max(until, self._max_spill_bytes)
        return until - self.total

    def tail(self) -> bytes:
        """Return the last ``max_bytes`` of the stream, or as much as is kept."""
        return self._place.read(self._place.window_start).data

    def read(self, offset: int) -> Span:
        """Return what came since *offset*; the whole window where that is gone."""
        return self._place.read(offset)

    def read_range(self, offset: int, limit: int) -> Span:
        """Return at most *limit* bytes at *offset*, or at the oldest kept byte."""
        return self._place.read_range(offset, limit)

    def write(self, data: bytes) -> None:
        """Take the next bytes of the stream; never fails."""
        if not data:
            return
        place = self._place
        if isinstance(place, InMemory):
            place.write(data)
            return
        before = place.total
        if not (place.file.make() and place.write(data)):
            memory = self._give_up(place)
            if place.total == before:
                memory.write(data)
        else:
            self._end_if_too_long(place)

    def splice_from(self, pipe_fd: int, limit: int) -> int:
        """Take at most *limit* bytes from a non-blocking pipe.

        Returns:
            How many; 0 at its end.

        Raises:
            BlockingIOError: The pipe is empty.
        """
        place = self._place
        if isinstance(place, InFile) and not place.file.made and _ended(pipe_fd):
            return 0  # so that a stream that says nothing makes no file
        while True:
            move = self.begin(limit)
            if move is None:
                data = os.read(pipe_fd, min(limit, READ_BYTES))
                self.write(data)
                return len(data)
            moved = move.run(pipe_fd)
            self.commit(move, moved)
            if moved.count or moved.end is End.EOF:
                return moved.count
            if isinstance(move, Skim) and moved.end is End.FAILED:
                return 0  # what cannot be read has no more bytes
            if moved.end is End.EMPTY:
                raise BlockingIOError

    def begin(self, limit: int) -> Transfer | Skim | None:
        """Plan a move of at most *limit* bytes that may run in another thread.

        Returns:
            None where the bytes have to be read and handed to `write`. Anything
            else has to be given to `commit` with what came of it, before the next
            `begin` or `write`.
        """
        place = self._leave_memory()
        if isinstance(place, InMemory):
            return place.skim(limit)
        move = place.plan(limit) if place.file.make() else None
        if move is None:
            return self._give_up(place).skim(limit)
        self._in_flight = place
        return move

    def _leave_memory(self) -> InMemory | InFile:
        """Go on in the spill file alone, once there is one; it has every byte."""
        place = self._place
        if isinstance(place, InMemory) and place.file is not None:
            self._place = self._in_file(place.file, total=place.total)
        return self._place

    def commit(self, move: Transfer | Skim, moved: Moved) -> None:
        """Take in what a move did."""
        place, source, self._in_flight = self._place, self._in_flight, None
        if isinstance(place, InMemory):
            tail = moved.tail
            if isinstance(move, Transfer) and source is not None:
                # The file was given up under the move; what it moved is there.
                tail = source.last_of(move, moved)
                source.file.delete()
            place.skimmed(tail, moved.count)
        elif isinstance(move, Transfer) and not place.took(move, moved):
            self._give_up(place)
        else:
            self._end_if_too_long(place)

    def _end_if_too_long(self, place: InFile) -> None:
        """Delete a spill file past its longest size: a rule, and no loss to tell."""
        if not (place.may_be_whole or self._may_slide):
            self._give_up(place, told=False)

    def _give_up(
        self, place: InFile, *, urgent: bool = False, told: bool = True
    ) -> InMemory:
        """Go on in memory, with the last window where the stream still runs."""
        memory = self._to_memory(b"" if self._settled else place.tail(), place.total)
        if self._in_flight is place:
            # A worker thread writes to this descriptor: it stays until `commit`.
            place.file.empty()
        else:
            place.file.delete(urgent=urgent)
        if told and self._on_lost is not None:
            self._on_lost()
        return memory

    def give_up_file(self, *, urgent: bool) -> None:
        """Part with the file for the sake of others (see `OutputBudget`)."""
        if isinstance(self._place, InMemory):
            self._place.lose_file(urgent=urgent)
        else:
            self._give_up(self._place, urgent=urgent)

    def when_lost(self, callback: Callable[[], None]) -> None:
        """Call *callback* when the file goes for want of room; see ``on_lost``."""
        self._on_lost = callback

    def settle(self) -> StreamOutput:
        """The stream has ended: close its file and tell what was kept."""
        if not self._settled:
            self._settled = True
            self._place.finish()
        if not self.total:
            return _NOTHING  # the rule for stderr
        return render(self.tail(), total=self.total, spill_path=self.spill_path)

    def discard(self) -> None:
        """Forget the stream and remove its file. Not while a move is in flight."""
        self._settled = True
        file = self._place.file
        if file is not None:
            file.delete()
        self._to_memory(b"", self.total)

    def close(self) -> None:
        """Close the file and leave it where it is, for a later `reopen`."""
        if self._place.file is not None:
            self._place.file.close()

    def state(self) -> StoreState:
        """Return what `reopen` needs; changes at `settle` and at ``on_lost`` only."""
        file = self._place.file
        return StoreState(
            label=self.label,
            name=None if file is None else file.name,
            max_bytes=self._max_bytes,
            max_spill_bytes=self._max_spill_bytes,
            total=self.total,
            settled=self._settled,
        )

    @classmethod
    def reopen(
        cls,
        state: StoreState,
        *,
        directory: OutputDirectory,
        budget: OutputBudget | None = None,
        on_lost: Callable[[], None] | None = None,
    ) -> StreamStore:
        """Go on with a stream of an earlier daemon; its file knows how long it is.

        Where the file is gone the stream goes on in memory, and what came before is
        lost to readers.
        """
        store = cls(
            state.label,
            directory=directory,
            max_bytes=state.max_bytes,
            max_spill_bytes=state.max_spill_bytes,
            file_from_start=True,
            budget=budget,
            on_lost=on_lost,
        )
        store._adopt(state)
        return store

    def _adopt(self, state: StoreState) -> None:
        self._settled = state.settled
        if state.name is None:
            self._to_memory(b"", state.total)
            return
        file = self._new_file(state.name)
        try:
            total = file.adopt(may_have_slid=self._max_spill_bytes)
        except OSError:
            if state.total or state.settled:
                self._to_memory(b"", state.total)
            else:
                # Nothing had been said yet: the file comes with the first byte.
                self._place = self._in_file(file, total=0)
            return
        self._place = self._in_file(file, total=total)
        if state.settled:
            self._place.finish()


def _ended(pipe_fd: int) -> bool:
    """Say whether a pipe is at its end, without taking a byte from it.

    Raises:
        BlockingIOError: It is empty and still open.
    """
    poll = select.poll()
    poll.register(pipe_fd, select.POLLIN)
    ready = poll.poll(0)
    if not ready:
        raise BlockingIOError
    return not ready[0][1] & select.POLLIN
