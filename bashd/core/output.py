"""What is kept of an output stream, and how it is told: pure rules.

A stream is a sequence of bytes with whole-stream coordinates: byte 0 is the first
that was ever written. Memory holds the last ``max_bytes`` of it, exact to the byte.
What does not fit goes to a spill file, and only a file with the complete stream is
ever advertised. This file decides and remembers; the files themselves are moved by
``daemon.output``.
"""

from __future__ import annotations

import codecs
from enum import Enum
from typing import NamedTuple

from bashd.core.model import StreamOutput


class Span(NamedTuple):
    """Bytes of a stream and where they lie in it."""

    data: bytes
    start: int
    """Offset of the first byte of *data* in the whole stream."""
    lossy: bool
    """Bytes between the asked offset and *start* are no longer kept."""

    @property
    def end(self) -> int:
        """Offset after the last byte: where the next read goes on."""
        return self.start + len(self.data)


class Spill(Enum):
    """What the next bytes mean for the spill file of a stream."""

    HOLD = "hold"
    """Everything still fits in memory: no file."""
    CREATE = "create"
    """First overflow: a file receives what is held and what comes now."""
    APPEND = "append"
    """The file goes on."""
    DROP = "drop"
    """The stream is longer than a file may be: no file from here on."""


def next_spill(
    held: int, more: int, *, max_bytes: int, max_spill_bytes: int, spilled: bool
) -> Spill:
    """Decide about the spill file before *more* bytes join a stream of *held*.

    Exactly *max_bytes* is no overflow. A stream whose first overflowing chunk would
    pass *max_spill_bytes* never gets a file.
    """
    total = held + more
    if total <= max_bytes and not spilled:
        return Spill.HOLD
    if total > max_spill_bytes:
        return Spill.DROP
    return Spill.APPEND if spilled else Spill.CREATE


def first_in_window(total: int, max_bytes: int, first_kept: int = 0) -> int:
    """Return the offset of the oldest byte that a reader is shown.

    Args:
        total: Length of the stream so far.
        max_bytes: Size of the window.
        first_kept: Bytes before this offset were lost for other reasons.
    """
    return max(total - max_bytes, first_kept, 0)


def span_to_read(offset: int, total: int, first: int) -> tuple[int, bool]:
    """Return where a read from *offset* starts and whether it is lossy.

    A reader whose offset slid out of the window gets the whole window.
    """
    if offset < first:
        return first, True
    return min(offset, total), False


class TailWindow:
    """The last *max_bytes* of a stream in memory, exact to the byte."""

    __slots__ = ("_held", "_max_bytes", "_total")

    def __init__(self, max_bytes: int, *, held: bytes = b"", total: int = 0) -> None:
        """Start empty, or go on where *held* ends at offset *total*."""
        self._max_bytes = max_bytes
        self._held = bytearray(held[-max_bytes:])
        self._total = max(total, len(held))

    @property
    def total(self) -> int:
        """Length of the whole stream, kept or not."""
        return self._total

    @property
    def start(self) -> int:
        """Offset of the oldest byte that is kept."""
        return self._total - len(self._held)

    def append(self, data: bytes, *, skipped: int = 0) -> None:
        """Take the next bytes of the stream; the oldest ones fall out.

        Args:
            data: The bytes.
            skipped: How many bytes came before *data* that nobody kept.
        """
        self._total += skipped + len(data)
        if skipped or len(data) >= self._max_bytes:
            # Nothing older can survive, so nothing older needs to move.
            self._held = bytearray(data[-self._max_bytes :])
            return
        self._held += data
        excess = len(self._held) - self._max_bytes
        if excess > 0:
            del self._held[:excess]

    def tail(self) -> bytes:
        """Return all that is kept."""
        return bytes(self._held)

    def read(self, offset: int) -> Span:
        """Return what came since *offset*, or the whole window when that is gone."""
        start, lossy = span_to_read(offset, self._total, self.start)
        return Span(bytes(self._held[start - self.start :]), start, lossy)

    def slice(self, offset: int, limit: int) -> Span:
        """Return at most *limit* bytes from *offset* or the oldest kept byte on."""
        start = min(max(offset, self.start), self._total)
        begin = start - self.start
        return Span(bytes(self._held[begin : begin + limit]), start, start > offset)


def decode(data: bytes) -> str:
    """Decode UTF-8; what is not UTF-8 becomes U+FFFD, as WHATWG counts it."""
    return data.decode("utf-8", "replace")


def decode_delta(data: bytes, *, final: bool) -> tuple[str, int]:
    """Decode a piece of a stream that may end inside a character.

    Args:
        data: The bytes since the last read.
        final: Nothing follows, so that an unfinished character is replaced.

    Returns:
        The text and how many bytes of *data* it stands for; the rest (at most three
        bytes) belongs to the next read.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data, final)
    unfinished, _ = decoder.getstate()
    return text, len(data) - len(unfinished)


def join_delta(stdout: str, stderr: str) -> str:
    """Join what came on both streams since the last read into one text."""
    if not stderr:
        return stdout
    newline = "" if not stdout or stdout.endswith("\n") else "\n"
    return f"{stdout}{newline}[stderr]\n{stderr}"


def render(tail: bytes, *, total: int, spill_path: str | None) -> StreamOutput:
    """Tell a finished stream: its tail, its length, and where all of it is.

    Args:
        tail: The kept end of the stream.
        total: Length of the whole stream in bytes.
        spill_path: A file with the complete stream; ignored where *tail* is whole.
    """
    truncated = len(tail) < total
    return StreamOutput(
        text=decode(tail),
        truncated=truncated,
        spill_path=spill_path if truncated else None,
        bytes=total,
    )
