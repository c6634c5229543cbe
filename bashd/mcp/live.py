"""Live output of a running command, in portions small enough for a notification.

Reports go out when there is something new, at most a few times a second, and every few
seconds without: clients that give up on silent calls take any report as a sign of life.
"""

from __future__ import annotations

import codecs
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import anyio

if TYPE_CHECKING:
    from bashd.core.executor import OutputSink

PORTION_CHARS: Final = 8_192
"""Most text of one report; a client draws it, nobody reads more at that pace."""
PACE_S: Final = 0.2
"""Shortest time between two reports."""
HEARTBEAT_S: Final = 10.0
"""Longest time between two reports: well below the 60 s after which the TypeScript SDK
and Codex give up on a call."""

Report = Callable[[float, str | None], Awaitable[None]]
"""Sends one report: seconds since the start (always growing) and the new text."""


class LiveOutput:
    """Collects what a command prints until the next report takes it."""

    def __init__(self) -> None:
        self._text = ""
        self._dropped = False
        self._fresh = anyio.Event()
        # Each stream its own decoder: a character may be split between two reads.
        decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders = {name: decoder("replace") for name in ("stdout", "stderr")}

    def feed(self, stream: str, data: bytes) -> None:
        """Take in what was printed; only the last portion is kept."""
        self._text += self._decoders[stream].decode(data)
        if len(self._text) > PORTION_CHARS:
            self._text = self._text[-PORTION_CHARS:]
            self._dropped = True
        self._fresh.set()

    async def wait_fresh(self) -> None:
        """Wait until something was printed since the last `take`."""
        await self._fresh.wait()

    def take(self) -> str | None:
        """Return the new text, or None without any."""
        text, dropped = self._text, self._dropped
        self._text, self._dropped, self._fresh = "", False, anyio.Event()
        if not text:
            return None
        return f"[\N{HORIZONTAL ELLIPSIS}]{text}" if dropped else text


@asynccontextmanager
async def live_reports(report: Report) -> AsyncGenerator[OutputSink]:
    """Report within the block what the sink it gives is fed."""
    output = LiveOutput()
    async with anyio.create_task_group() as group:
        group.start_soon(_report, output, report)
        yield output.feed
        group.cancel_scope.cancel()


async def _report(output: LiveOutput, report: Report) -> None:
    began = anyio.current_time()
    while True:
        with anyio.move_on_after(HEARTBEAT_S):
            await output.wait_fresh()
        await report(round(anyio.current_time() - began, 3), output.take())
        await anyio.sleep(PACE_S)
