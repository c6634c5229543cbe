"""The audit log on disk: appending, rotation, and going on after a crash. Blocking.

``audit.jsonl`` holds the newest lines, ``audit.jsonl.1`` the ones before and so on;
``audit.jsonl.head`` says which line must be the last and which the first. The chain
(`bashd.core.audit_chain`) goes on across files and across daemons. A line is either
whole or not there: what a full disk or a crash cut off is taken away before the next
one is written. Nothing is synced; the journal, where there is one, has each line's hash.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bashd.core.audit_chain import GENESIS, Head, Link, open_line, seal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

logger = logging.getLogger(__name__)

_FLAGS: Final = (
    os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY
)
_BLOCK: Final = 64 * 1024


class AuditFile:
    """One log; owns a descriptor once something was written.

    Args:
        path: Of the newest file; its folder must exist.
        rotate_bytes: A file that would grow larger is put aside.
        keep_files: So many files that were put aside are kept.
    """

    def __init__(self, path: Path, *, rotate_bytes: int, keep_files: int) -> None:
        self.path = path
        self._rotate_bytes = rotate_bytes
        self._keep_files = keep_files
        self._fd = -1
        self._size = 0
        self._head = Head(1, Link())

    def append(self, entries: Iterable[Mapping[str, Any]]) -> list[Link]:
        """Write entries as lines; returns each one's number and hash.

        Either all of them are written or none.

        Raises:
            OSError: The log cannot be written.
        """
        self._open()
        lines: list[bytes] = []
        links: list[Link] = []
        end = self._head.last
        for entry in entries:
            line, end = seal(entry, end)
            lines.append(line + b"\n")
            links.append(end)
        data = b"".join(lines)
        if self._size and self._size + len(data) > self._rotate_bytes:
            self._rotate()
        self._write(data)
        self._head = Head(self._head.first, end)
        self._save_head()
        return links

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    # -- opening ----------------------------------------------------------------------

    def _open(self) -> None:
        if self._fd >= 0:
            if self._is_in_place():
                return
            # Somebody moved or removed it, as logrotate does: the chain goes on anew.
            self.close()
        first_time = not self._size and not self._head.last.number
        self._fd = os.open(self.path, _FLAGS, 0o600)
        info = os.fstat(self._fd)
        if not stat.S_ISREG(info.st_mode):
            self.close()
            raise OSError(f"{self.path} is no file")
        self._size = info.st_size
        if first_time:
            self._find_end()

    def _is_in_place(self) -> bool:
        ours = os.fstat(self._fd)
        try:
            there = self.path.stat()
        except OSError:
            return False
        return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)

    def _find_end(self) -> None:
        """Find where the chain of an earlier daemon ended, and its unfinished line."""
        head = self._load_head()
        whole, line = _last_line(self._fd, self._size)
        if whole < self._size:
            logger.warning(
                "%s: %d bytes of an unfinished line are taken away",
                self.path,
                self._size - whole,
            )
            os.ftruncate(self._fd, whole)
            self._size = whole
        last = head.last if head is not None else Link()
        if line is not None:
            opened = open_line(line)
            if opened is not None:
                # Newer than the head if the daemon died between the two.
                last = max(last, opened.link, key=lambda link: link.number)
            elif head is None:
                last = Link(0, GENESIS)
        first = head.first if head is not None else 1
        self._head = Head(first, last)

    # -- writing ----------------------------------------------------------------------

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError:
            # Half a line would look like a forgery.
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._size)
            raise
        self._size += len(data)

    def _rotate(self) -> None:
        self.close()
        aside = [self.path.with_name(f"{self.path.name}.{n}") for n in range(1, 10_000)]
        used = next(n for n, path in enumerate(aside) if not path.exists())
        for number in range(used, 0, -1):
            aside[number - 1].rename(aside[number])
        self.path.rename(aside[0])
        kept = [path for path in aside[: used + 1] if path.exists()]
        for path in kept[self._keep_files :]:
            path.unlink()
        kept = kept[: self._keep_files]
        first = _first_number(kept[-1]) if kept else self._head.last.number + 1
        self._head = Head(first or self._head.first, self._head.last)
        self._fd = os.open(self.path, _FLAGS | os.O_EXCL, 0o600)
        self._size = 0

    def _save_head(self) -> None:
        staging = self.path.with_name(f".{self.path.name}.head")
        staging.write_text(self._head.text())
        staging.chmod(0o600)
        staging.replace(head_path(self.path))

    def _load_head(self) -> Head | None:
        try:
            return Head.parse(head_path(self.path).read_text())
        except (OSError, ValueError):
            return None


def head_path(path: Path) -> Path:
    """Return the head file of a log."""
    return path.with_name(f"{path.name}.head")


def _last_line(fd: int, size: int) -> tuple[int, bytes | None]:
    """Return how many bytes are whole lines, and the last of those."""
    tail, start = b"", size
    whole = None
    while start > 0:
        count = min(_BLOCK, start)
        start -= count
        tail = os.pread(fd, count, start) + tail
        if whole is None and b"\n" in tail:
            end = tail.rindex(b"\n")
            whole, tail = start + end + 1, tail[:end]
        if whole is not None and b"\n" in tail:
            return whole, tail[tail.rindex(b"\n") + 1 :]
    return (0, None) if whole is None else (whole, tail)


def _first_number(path: Path) -> int | None:
    with contextlib.suppress(OSError), path.open("rb") as file:
        line = open_line(file.readline().rstrip(b"\n"))
        return None if line is None else line.link.number
    return None
