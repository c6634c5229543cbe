"""What the host looks like from one session: roots, masks, protected metadata.

`look` is the thorough survey, made once per cell. `stamp` is the cheap check of every
call: the state of the folders that hold the surveyed names. Only when a stamp differs
is the survey made again, and only when that differs too is the cell rebuilt. Both run
with the peer's rights.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import select
import stat
from dataclasses import dataclass
from pathlib import Path

from bashd.core.confinement import NAME_RESOLUTION, Found, is_below
from bashd.core.errors import StartError
from bashd.daemon import code
from bashd.launcher import kernel

Stamp = tuple[tuple[int, int, int] | None, ...]


@dataclass(frozen=True, slots=True)
class Question:
    """What to look for; derived from policy and session, compared by value."""

    roots: tuple[str, ...]
    """Writable roots, canonical, the workspace first."""
    masked: tuple[str, ...]
    """Absolute paths, a glob in the last component at most."""
    protected: tuple[str, ...]
    """Relative to each root."""
    devices: tuple[str, ...] = ()
    sockets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Survey:
    """The answer, with the inodes that make it comparable."""

    found: Found
    inodes: tuple[tuple[str, int, int], ...]
    watched: tuple[str, ...]
    """Folders whose change may change the answer."""


def look(question: Question) -> Survey:
    """Survey the host. Blocking; call it as the peer."""
    masks = _find_masks(question.masked)
    protected, anchors = _find_protected(question.roots, question.protected)
    found = Found(
        masks=tuple(masks),
        protected=tuple(protected),
        anchors=tuple(anchors),
        code=code.code_paths(),
        run_folders=tuple(p for p in NAME_RESOLUTION if Path(p).is_dir()),
        devices=tuple(p for p in question.devices if os.path.lexists(p)),
        sockets=tuple(p for p in question.sockets if os.path.lexists(p)),
    )
    names = [question.roots[0], *(p for p, _ in masks), *(p for p, _ in protected)]
    return Survey(found, tuple(_inode(name) for name in names), _watched(question))


def _inode(path: str) -> tuple[str, int, int]:
    try:
        info = os.lstat(path)
    except OSError:
        return (path, 0, 0)
    return (path, info.st_dev, info.st_ino)


def _find_masks(patterns: tuple[str, ...]) -> list[tuple[str, bool]]:
    found: dict[str, bool] = {}
    for pattern in patterns:
        parent, _, name = pattern.rpartition("/")
        for path in _expand(parent or "/", name):
            # A mask holds under any name: what a link leads to is masked where it is.
            target = os.path.realpath(path)
            try:
                info = os.stat(target)
            except OSError:
                continue
            if stat.S_ISDIR(info.st_mode) or stat.S_ISREG(info.st_mode):
                found[target] = stat.S_ISDIR(info.st_mode)
    return sorted(found.items())


def _expand(parent: str, name: str) -> list[str]:
    if not any(sign in name for sign in "*?["):
        return [f"{parent.rstrip('/')}/{name}"]
    try:
        entries = os.listdir(parent)
    except OSError:
        return []
    return [f"{parent.rstrip('/')}/{e}" for e in entries if fnmatch.fnmatch(e, name)]


def _find_protected(
    roots: tuple[str, ...], names: tuple[str, ...]
) -> tuple[list[tuple[str, bool]], list[str]]:
    found: dict[str, bool] = {}
    anchors: dict[str, None] = {}
    for root in roots:
        for name in names:
            path = os.path.realpath(f"{root.rstrip('/')}/{name}")
            if not is_below(path, root) or path == root:
                continue
            try:
                info = os.lstat(path)
            except OSError:
                continue
            found[path] = stat.S_ISDIR(info.st_mode)
            parent = os.path.dirname(path)
            if parent != root and is_below(parent, root):
                anchors[parent] = None
    return sorted(found.items()), list(anchors)


def _watched(question: Question) -> tuple[str, ...]:
    folders: dict[str, None] = {}
    for pattern in question.masked:
        folders[pattern.rpartition("/")[0] or "/"] = None
    for root in question.roots:
        for name in question.protected:
            folders[f"{root.rstrip('/')}/{name}".rpartition("/")[0]] = None
    return tuple(folders)


def stamp(watched: tuple[str, ...]) -> Stamp:
    """Return device, inode and change time of each folder; None where it is missing.

    An entry that is made, removed or renamed changes its folder's change time, so an
    equal stamp means that the survey would find the same names.
    """
    found: list[tuple[int, int, int] | None] = []
    for path in watched:
        try:
            info = os.stat(path)
        except OSError:
            found.append(None)
        else:
            found.append((info.st_dev, info.st_ino, info.st_ctime_ns))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Workdir:
    """A resolved working folder: its canonical path and its inode."""

    path: str
    dev: int
    ino: int


def find_root(path: str) -> Workdir:
    """Open a session's canonical root anew, following no link.

    Raises:
        StartError: It is gone, is a symlink now, or cannot be entered.
    """
    try:
        return _open_folder(path)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR) and os.path.lexists(path):
            raise StartError(
                f"the session's folder {path} is reached through a symbolic link or"
                " is no folder any more; open a session on the real path"
            ) from error
        raise StartError(_start_text(error, path)) from error


def find_workdir(path: str) -> Workdir:
    """Resolve a caller's working folder component by component, links included.

    ``link/..`` is where a chdir would land, not where the text says.

    Raises:
        StartError: With the ENOENT text, or whatever else stands in the way.
    """
    try:
        return _open_folder(os.path.realpath(path, strict=True))
    except OSError as error:
        raise StartError(_start_text(error, path)) from error


def _open_folder(path: str) -> Workdir:
    fd = kernel.open_no_symlinks(path, os.O_PATH | os.O_DIRECTORY)
    try:
        info = os.fstat(fd)
    finally:
        os.close(fd)
    return Workdir(path, info.st_dev, info.st_ino)


def _start_text(error: OSError, path: str) -> str:
    name = errno.errorcode.get(error.errno or 0, "EIO")
    return f"cannot use the working folder {path}: {name}: {os.strerror(error.errno or 0)}"


class MountTable:
    """Notices changes of the host's mount table, without reading it.

    Source: proc_pid_mounts(5): the file polls as POLLERR | POLLPRI after a change.
    """

    def __init__(self) -> None:
        self._file = open("/proc/self/mountinfo", "rb")  # noqa: SIM115 - kept open
        self._poll = select.poll()
        self._poll.register(self._file, select.POLLPRI)
        self.generation = 0

    def check(self) -> int:
        """Return a number that grows with every change."""
        if self._poll.poll(0):
            self.generation += 1
        return self.generation

    def close(self) -> None:
        """Stop watching."""
        self._file.close()
