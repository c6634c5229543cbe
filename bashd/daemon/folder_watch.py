"""Which folders have changed since the last look, at no cost while nothing does.

inotify reports what is made, removed and renamed, by whoever and through whichever
mount. It is read only when somebody asks, so a storm of changes costs the daemon
nothing until then; what did not fit into the kernel's queue is reported as overflow.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import Final, NamedTuple

from bashd.launcher import kernel

_READ_BYTES: Final = 64 * 1024
"""Little enough for the allocator to have it at hand: mostly nothing comes."""
_MADE: Final = kernel.IN_CREATE | kernel.IN_MOVED_TO
_NO_MORE: Final = frozenset({errno.ENOSPC, errno.ENOMEM, errno.EMFILE})
"""This user's share of watches is used up. Source: inotify(7), max_user_watches."""


class Event(NamedTuple):
    """One name that came or went."""

    folder: str
    """As it was called when its watch was set."""
    name: str
    is_dir: bool
    made: bool
    """It is there now; otherwise it was removed or renamed away."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What happened since the last look."""

    events: tuple[Event, ...] = ()
    overflow: bool = False
    """Something was lost: anything may have happened."""

    def __bool__(self) -> bool:
        return bool(self.events) or self.overflow


class FolderWatch:
    """Watches folders; owns one inotify descriptor.

    Raises:
        OSError: The user has no inotify instances left.
    """

    def __init__(self) -> None:
        self._fd = kernel.inotify_init()
        self._paths: dict[int, str] = {}
        self._pending: list[Event] = []
        self._overflow = False
        self.exhausted = False
        """A folder could not be watched, because the user may have no more watches."""

    def __len__(self) -> int:
        return len(self._paths)

    def add(self, path: str) -> bool:
        """Watch a folder; says whether it is watched. Run as the peer."""
        try:
            number = kernel.watch_folder(self._fd, path)
        except OSError as error:
            self.exhausted |= error.errno in _NO_MORE
            return False
        # After a rename the same watch has another path.
        self._paths[number] = path
        return True

    def is_quiet(self) -> bool:
        """Whether nothing has happened since `take`; does not wait."""
        self._read()
        return not self._pending and not self._overflow

    def take(self) -> Changes:
        """Return what has happened since the last time."""
        self._read()
        events, self._pending = tuple(self._pending), []
        overflow, self._overflow = self._overflow, False
        return Changes(events, overflow)

    def _read(self) -> None:
        while self._fd >= 0:
            try:
                data = os.read(self._fd, _READ_BYTES)
            except BlockingIOError:
                return
            self._parse(data)

    def _parse(self, data: bytes) -> None:
        at = 0
        header = kernel.INOTIFY_EVENT
        while at < len(data):
            number, mask, _, length = header.unpack_from(data, at)
            at += header.size
            raw = data[at : at + length]
            at += length
            if mask & kernel.IN_Q_OVERFLOW:
                self._overflow = True
            elif mask & kernel.IN_IGNORED:
                self._paths.pop(number, None)
            elif (folder := self._paths.get(number)) is not None:
                name = os.fsdecode(raw.rstrip(b"\0"))
                is_dir = bool(mask & kernel.IN_ISDIR)
                self._pending.append(Event(folder, name, is_dir, bool(mask & _MADE)))

    def close(self) -> None:
        """Stop watching."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
