"""The pipes of a command, at first without a task of their own.

Most commands are over in a moment and print little. For these the pump of their cell,
which hears of their end anyway, takes what they print as well: a bounded turn whenever
something is there. What is not over soon, prints in quantities or outruns its live
reader goes on in tasks (`bashd.daemon.drain.Drains`).
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bashd.daemon.cell import Spare
    from bashd.daemon.drain import Stream


class Pipes:
    """The streams of one command until `hand_over`; owns their descriptors.

    Args:
        spare: The command; it is woken when turns will not do for a stream.
        streams: Its streams.
    """

    def __init__(self, spare: Spare, streams: tuple[Stream, ...]) -> None:
        self._spare = spare
        self._open = list(streams)
        try:
            for stream in streams:
                spare.cell.watch(stream.fd, partial(self._turn, stream))
        except OSError:
            # Then nobody reads here, and they are handed over.
            spare.wake.set()

    @property
    def ended(self) -> bool:
        """Whether every stream is at its end."""
        return not self._open

    def hand_over(self) -> list[Stream]:
        """Return the streams that are not at their end, with their descriptors."""
        streams, self._open = self._open, []
        for stream in streams:
            self._spare.cell.unwatch(stream.fd)
        return streams

    def close(self) -> None:
        """Close what is left."""
        for stream in self.hand_over():
            os.close(stream.fd)

    def _turn(self, stream: Stream) -> None:
        try:
            goes_on = stream.take_turn()
        except Exception:  # noqa: BLE001 - its own task meets it again, and tells
            goes_on = False
        if stream.ended:
            self._open.remove(stream)
            self._spare.cell.unwatch(stream.fd)
            os.close(stream.fd)
        elif not goes_on:
            self._spare.cell.unwatch(stream.fd)
            self._spare.wake.set()
