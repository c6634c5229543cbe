"""One look at a protected path: what is there, and enough of it to put it back.

Bounded in entries and bytes, because a protected folder may hold anything. What lies
beyond the bounds is compared by its times but cannot be restored. Run as the peer.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from typing import Final

from bashd.core.metadata import Entry, Kind, Target, Tree, compare, is_hook
from bashd.launcher import kernel

_MAX_ENTRIES: Final = 1024
_MAX_DEPTH: Final = 8
_MAX_FILE_BYTES: Final = 256 * 1024
_MAX_BYTES: Final = 4 * 1024 * 1024
_TYPES: Final = {stat.S_IFREG: "f", stat.S_IFDIR: "d", stat.S_IFLNK: "l"}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A protected path at one moment; `tree` is empty where nothing is."""

    tree: Tree
    contents: dict[str, bytes] = field(default_factory=dict[str, bytes])
    """Of files, and the targets of links; by the tree's relative paths."""
    complete: bool = True
    """Otherwise there is more than can be looked at, and only the top is known."""

    @property
    def top(self) -> Entry | None:
        """The path itself."""
        return self.tree.get("")

    @property
    def has_other_names(self) -> bool:
        """Whether a file of it is a hard link: no mount covers its other names."""
        return any(
            entry.type == "f" and entry.links > 1 for entry in self.tree.values()
        )


NOTHING: Final = Snapshot({})


def look_at_top(path: str) -> Entry | None:
    """Return the entry at *path* itself, or None."""
    try:
        info = os.lstat(path)
    except OSError:
        return None
    kind = _TYPES.get(stat.S_IFMT(info.st_mode), "?")
    if kind == "d":
        # A folder's times change with what is in it; of its own it has its birth.
        size, mtime_ns, ctime_ns = 0, 0, kernel.birth_ns(path)
        links = 1
    else:
        size, mtime_ns, ctime_ns = info.st_size, info.st_mtime_ns, info.st_ctime_ns
        links = info.st_nlink
    mode = stat.S_IMODE(info.st_mode)
    return Entry(kind, info.st_dev, info.st_ino, mode, size, mtime_ns, ctime_ns, links)


def look(target: Target) -> Snapshot:
    """Return the tree of a protected path, without contents."""
    tree: dict[str, Entry] = {}
    hooks = target.kind is Kind.HOOKS
    if _walk(target.path, "", tree, 1 if hooks else _MAX_DEPTH, hooks=hooks):
        return Snapshot(tree)
    return Snapshot({"": tree[""]}, complete=False)


def _walk(
    path: str,
    relative: str,
    tree: dict[str, Entry],
    depth: int,
    *,
    hooks: bool = False,
) -> bool:
    """Add what is at *path* and below; says whether that was within the bounds."""
    entry = look_at_top(path)
    if entry is None:
        return True
    tree[relative] = entry
    if entry.type != "d" or not depth:
        return True
    try:
        names = sorted(os.listdir(path))  # noqa: PTH208 - names are enough
    except OSError:
        return True
    if hooks:
        names = [name for name in names if is_hook(name)]
    if len(tree) + len(names) > _MAX_ENTRIES:
        return False
    prefix = f"{relative}/" if relative else ""
    return all(
        _walk(f"{path}/{name}", prefix + name, tree, depth - 1) for name in names
    )


def take(target: Target) -> Snapshot:
    """Return the tree of a protected path with what is needed to restore it."""
    seen = look(target)
    contents: dict[str, bytes] = {}
    left = _MAX_BYTES
    for relative, entry in seen.tree.items():
        path = f"{target.path}/{relative}" if relative else target.path
        if entry.type == "l":
            contents[relative] = read_link(path)
        elif entry.type == "f" and entry.size <= min(left, _MAX_FILE_BYTES):
            content = read_file(path)
            if content is not None:
                contents[relative] = content
                left -= len(content)
    return Snapshot(seen.tree, contents, seen.complete)


def read_link(path: str) -> bytes:
    """Return where a symbolic link leads; empty if it is none."""
    try:
        return os.readlink(os.fsencode(path))  # noqa: PTH115 - bytes
    except OSError:
        return b""


def read_file(path: str) -> bytes | None:
    """Return the content of a regular file that is reached through no link."""
    try:
        fd = kernel.open_no_symlinks(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return None
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode) or info.st_size > _MAX_FILE_BYTES:
            return None
        return os.pread(fd, _MAX_FILE_BYTES, 0)
    except OSError:
        return None
    finally:
        os.close(fd)


def is_same(target: Target, before: Snapshot, *, mounted: bool) -> bool:
    """Whether nothing has happened to a path."""
    if before.top is None:
        return not os.path.lexists(target.path)
    if not mounted:
        now = look(target)
        if before.complete and now.complete:
            return not compare(before.tree, now.tree)
        return before.top == now.top
    top = look_at_top(target.path)
    if top is None:
        return False
    # Entries of a folder that is mounted read-only change by the host's hand alone.
    return (
        top.identity == before.top.identity and top.type == "d"
    ) or top == before.top


def is_in_place(target: Target, before: Snapshot) -> bool:
    """Whether a mounted path kept its mount: a change is the host's then."""
    top = look_at_top(target.path)
    return (
        top is not None
        and before.top is not None
        and top.identity == before.top.identity
    )


def same_file(before: Snapshot, now: Snapshot, name: str) -> bool:
    """Whether a file has the content, and no more rights, than it had."""
    old, new = before.tree.get(name), now.tree.get(name)
    if old is None or new is None or old.type != new.type:
        return False
    content = before.contents.get(name)
    same = content is not None and content == now.contents.get(name)
    return same and (old.executable or not new.executable)


def has_content(path: str, old: Entry, content: bytes | None) -> bool:
    """Whether what is at *path* is of the old type and holds the old content."""
    now = look_at_top(path)
    if now is None or now.type != old.type:
        return False
    if old.type == "d":
        return True
    if old.type == "l":
        return read_link(path) == content
    return content is not None and read_file(path) == content
