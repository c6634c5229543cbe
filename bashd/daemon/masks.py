"""What must not be read or talked to: masked paths, their other names, deputies.

Patterns have a glob in their last component at most, so looking for masks lists some
twenty folders and never walks a tree. What was found in a folder holds until that
folder's change time moves. Run as the peer.
"""

from __future__ import annotations

import fnmatch
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from bashd.core.confinement import PRIVATE
from bashd.core.mount_table import bound_sockets, other_names, parse_mountinfo
from bashd.core.paths import is_below, is_below_any
from bashd.daemon.real_path import real_path

_NAME_SERVICE = frozenset({"/var/lib/sss/pipes/nss"})
"""Without it nobody would have a name on machines whose accounts sssd keeps."""
_MAX_DEPUTIES = 256
"""A mount each. Hosts have some ten outside /run; where there are more than this, the
rest stays open, and that is said."""

FolderStamp = tuple[int, int, int]


class Mask(NamedTuple):
    """One masked object under its canonical path."""

    path: str
    is_dir: bool
    dev: int
    ino: int


@dataclass(frozen=True, slots=True)
class _Folder:
    """What one folder held that patterns name."""

    stamp: FolderStamp | None
    masks: tuple[Mask, ...]
    has_links: bool
    """Some of it lies elsewhere, so this folder's stamp does not tell of changes."""


@dataclass(frozen=True, slots=True)
class Masks:
    """Everything masked on this host for one list of patterns."""

    found: tuple[Mask, ...] = ()
    """Under every name, sorted."""
    folders: dict[str, _Folder] = field(default_factory=dict[str, _Folder])

    @property
    def watched(self) -> tuple[str, ...]:
        """Folders whose change may change the answer.

        A folder that is missing cannot come without its parent changing, so its
        nearest parent that exists stands for it: of some forty patterns' folders a
        dozen are left to look at before each command.
        """
        return tuple(
            dict.fromkeys(
                path if folder.stamp is not None else _existing_parent(path)
                for path, folder in self.folders.items()
            )
        )


def stamp_of(path: str) -> FolderStamp | None:
    """Return device, inode and change time; None where nothing is.

    An entry that is made, removed or renamed changes its folder's change time.
    """
    try:
        info = os.stat(path)  # noqa: PTH116 - paths are text here
    except OSError:
        return None
    return (info.st_dev, info.st_ino, info.st_ctime_ns)


def _existing_parent(path: str) -> str:
    while path != "/" and stamp_of(path) is None:
        path = path.rpartition("/")[0] or "/"
    return path


def find_masks(patterns: tuple[str, ...], before: Masks | None = None) -> Masks:
    """Look for what *patterns* name, again only in folders that have changed."""
    by_folder: dict[str, list[str]] = {}
    for pattern in patterns:
        parent, _, name = pattern.rpartition("/")
        by_folder.setdefault(parent or "/", []).append(name)
    folders: dict[str, _Folder] = {}
    for parent, names in by_folder.items():
        seen = stamp_of(parent)
        known = before.folders.get(parent) if before is not None else None
        if known is not None and known.stamp == seen and not known.has_links:
            folders[parent] = known
        else:
            folders[parent] = _look_in(parent, names, seen)
    primary = {mask for folder in folders.values() for mask in folder.masks}
    if before is not None and before.folders == folders:
        return Masks(before.found, folders)
    return Masks(tuple(sorted(primary | _aliases(primary))), folders)


def _look_in(parent: str, names: list[str], seen: FolderStamp | None) -> _Folder:
    if seen is None:
        return _Folder(None, (), has_links=False)
    masks: dict[str, Mask] = {}
    has_links = False
    for path in _expand(parent, names):
        try:
            is_link = stat.S_ISLNK(os.lstat(path).st_mode)
            # A mask holds under any name: what a link leads to is masked where it is.
            target = real_path(path)
            info = os.stat(target)  # noqa: PTH116 - paths are text here
        except OSError:
            continue
        has_links |= is_link
        if stat.S_ISDIR(info.st_mode) or stat.S_ISREG(info.st_mode):
            is_dir = stat.S_ISDIR(info.st_mode)
            masks[target] = Mask(target, is_dir, info.st_dev, info.st_ino)
    return _Folder(seen, tuple(masks.values()), has_links)


def _expand(parent: str, names: list[str]) -> list[str]:
    base = parent.rstrip("/")
    found = [f"{base}/{name}" for name in names if not _is_glob(name)]
    globs = [name for name in names if _is_glob(name)]
    if globs:
        try:
            entries = os.listdir(parent)  # noqa: PTH208 - names are enough
        except OSError:
            entries = []
        found += [
            f"{base}/{entry}"
            for entry in entries
            if any(fnmatch.fnmatchcase(entry, glob) for glob in globs)
        ]
    return found


def _is_glob(name: str) -> bool:
    return any(sign in name for sign in "*?[")


def _aliases(masks: set[Mask]) -> set[Mask]:
    """Find what other mounts show of the masked objects."""
    table = parse_mountinfo(os.fsdecode(Path("/proc/self/mountinfo").read_bytes()))
    found: set[Mask] = set()
    for mask in masks:
        for name in other_names(mask.path, table):
            try:
                info = os.stat(name)  # noqa: PTH116 - paths are text here
            except OSError:
                continue
            # Either the same object, or a part of it that is mounted by itself.
            if is_below(name, mask.path) or not _is_maskable(info):
                continue
            found.add(Mask(name, stat.S_ISDIR(info.st_mode), info.st_dev, info.st_ino))
    return found


def _is_maskable(info: os.stat_result) -> bool:
    return stat.S_ISDIR(info.st_mode) or stat.S_ISREG(info.st_mode)


@dataclass(frozen=True, slots=True)
class Deputies:
    """Sockets of others that lie outside the folders a cell has of its own."""

    found: tuple[tuple[str, int, int, int], ...] = ()
    """Canonical path, device, inode and change time: a socket that replaces another
    often gets its inode's number."""
    folders: tuple[str, ...] = ()
    """Where they lie."""
    complete: bool = True
    """There are no others: not more than can be covered."""

    def any_changed(self) -> bool:
        """Whether one of them is gone or is another one by now."""
        for known in self.found:
            try:
                info = os.lstat(known[0])
            except OSError:
                return True
            if _deputy(known[0], info) != known:
                return True
        return False

    def any_replaced(self) -> bool:
        """Whether a service has made its socket anew, which uncovers it in a cell.

        One that is gone does no harm, and a cell is not rebuilt for it.
        """
        for known in self.found:
            try:
                info = os.lstat(known[0])
            except OSError:
                continue
            if stat.S_ISSOCK(info.st_mode) and _deputy(known[0], info) != known:
                return True
        return False


def _deputy(path: str, info: os.stat_result) -> tuple[str, int, int, int]:
    return (path, info.st_dev, info.st_ino, info.st_ctime_ns)


def find_deputies(visible: tuple[str, ...]) -> Deputies:
    """Look for sockets a command could connect to through a read-only mount.

    Those that are bound by now and that the peer may connect to. A read-only mount
    does not stop connect(), and Landlock (before ABI 9) does not see it, so each one is
    covered. One that is bound later, elsewhere, is found when the next cell is made.

    Args:
        visible: Folders whose sockets stay: the writable roots.
    """
    found: dict[str, tuple[str, int, int, int]] = {}
    complete = True
    table = os.fsdecode(Path("/proc/net/unix").read_bytes())
    for bound in bound_sockets(table):
        parent, _, name = bound.rpartition("/")
        parent = real_path(parent or "/")
        path = f"{parent.rstrip('/')}/{name}"
        unseen = is_below_any(path, (*PRIVATE, *visible)) or path in _NAME_SERVICE
        if unseen:
            continue
        try:
            info = os.lstat(path)
        except OSError:
            continue
        if not stat.S_ISSOCK(info.st_mode) or not _may_connect(path):
            continue
        if len(found) == _MAX_DEPUTIES and path not in found:
            complete = False
            break
        found[path] = _deputy(path, info)
    folders = dict.fromkeys(os.path.dirname(path) for path in found)  # noqa: PTH120
    return Deputies(tuple(found.values()), tuple(folders), complete)


def _may_connect(path: str) -> bool:
    # Effective ids: the thread's, which are the peer's.
    return os.access(path, os.W_OK, effective_ids=True)
