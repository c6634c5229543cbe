"""The audit log: who ran what, how far it reached, what it was refused, how it ended.

An entry costs its call a reference in a queue. A writer takes the queue a few times a
second, and makes lines, hashes and the write in a thread; so a slow or full disk holds
up nobody. What the queue cannot take is counted, and the count is written as an entry.
A daemon that is killed loses the entries of the last moment; commands that ran longer
are there, because what outlives one turn of the writer gets a line for its start.

Under systemd each entry is sent to the journal too, as fields (``BASHD_RUN_ID`` and so
on), with the hash of its line.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import trio

from bashd.daemon import journal

if TYPE_CHECKING:
    from bashd.core.audit_chain import Link
    from bashd.daemon.audit_file import AuditFile

logger = logging.getLogger(__name__)

_EVERY_S: Final = 0.1
"""How long entries are gathered: what a crash may cost, and ten wake-ups a second."""
_QUEUED: Final = 5_000
"""Entries that wait while the disk does not take any: some 5 MB as a rule."""

Entry = Mapping[str, Any]
_Waiting = Callable[[], Entry]


@dataclass(slots=True)
class AuditLog:
    """Takes entries from everywhere in the daemon and writes them; one a daemon."""

    file: AuditFile | None = None
    """None: nothing is logged."""
    _queue: deque[_Waiting] = field(default_factory=deque["_Waiting"])
    _dropped: int = 0
    _failing: bool = False
    _held: dict[str, _Waiting] = field(default_factory=dict["str", "_Waiting"])
    _wake: trio.Event = field(default_factory=trio.Event)
    _writing: trio.Lock = field(default_factory=trio.Lock)

    @property
    def is_on(self) -> bool:
        """Whether anything is logged."""
        return self.file is not None

    # -- what is told -----------------------------------------------------------------

    def note(self, event: str, **fields: object) -> None:
        """Log an event that is no command's."""
        now = round(time.time(), 3)
        self.put(lambda: {"time": now, "event": event, **fields})

    def put(self, make: Callable[[], Entry]) -> None:
        """Log an entry that *make* returns when it is written, in another thread."""
        if self.file is None:
            return
        if len(self._queue) >= _QUEUED:
            self._dropped += 1
            return
        self._queue.append(make)
        self._wake.set()

    def hold(self, key: str, make: Callable[[], Entry]) -> None:
        """Log an entry unless it is let go of before the writer's next turn."""
        if self.file is not None:
            self._held[key] = make
            self._wake.set()

    def let_go(self, key: str) -> None:
        """Forget an entry that is held."""
        self._held.pop(key, None)

    # -- writing ----------------------------------------------------------------------

    async def serve(
        self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Write what comes until cancelled."""
        task_status.started()
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            await trio.sleep(_EVERY_S)
            await self.flush()

    async def flush(self) -> None:
        """Write everything that has been told."""
        async with self._writing:
            batch = self._take()
            dropped, self._dropped = self._dropped, 0
            if not batch and not dropped:
                return
            entries, written = await trio.to_thread.run_sync(
                self._write, batch, dropped
            )
            if isinstance(written, OSError):
                self._failed(written, entries[: len(batch)], dropped)
                return
            if self._failing:
                self._failing = False
                logger.info("the audit log is written again")
            for entry, link in zip(entries, written, strict=True):
                _to_journal(entry, link)

    def _take(self) -> list[_Waiting]:
        # In the daemon's own thread: what is still held now has outlived this turn.
        held, self._held = self._held, {}
        for make in held.values():
            self.put(make)
        batch = list(self._queue)
        self._queue.clear()
        return batch

    def _write(
        self, batch: list[_Waiting], dropped: int
    ) -> tuple[list[Entry], list[Link] | OSError]:
        assert self.file is not None  # noqa: S101 - nothing is queued without
        entries = [make() for make in batch]
        if dropped:
            now = round(time.time(), 3)
            entries.append({"time": now, "event": "dropped", "count": dropped})
        try:
            return entries, self.file.append(entries)
        except OSError as error:
            return entries, error

    def _failed(self, error: OSError, entries: list[Entry], dropped: int) -> None:
        """Say so once, and try these again with the next entry."""
        if not self._failing:
            self._failing = True
            logger.error("the audit log cannot be written, commands run on: %s", error)
        room = _QUEUED - len(self._queue)
        self._dropped += dropped + max(len(entries) - room, 0)
        # As they are by now: what they were made from need not be kept.
        self._queue.extendleft(partial(_same, e) for e in reversed(entries[:room]))

    async def close(self) -> None:
        """Write what is left and close the file."""
        await self.flush()
        if self.file is not None:
            self.file.close()


def _same(entry: Entry) -> Entry:
    return entry


def _to_journal(entry: Entry, link: Link) -> None:
    if not journal.is_attached():
        return
    fields = {name: value for name, value in entry.items() if value is not None}
    fields |= {"audit_seq": link.number, "audit_hash": link.digest}
    message = f"{entry['event']} {entry.get('run_id', '')}".rstrip()
    logger.info("audit: %s", message, extra={journal.FIELDS: fields})
