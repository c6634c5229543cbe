"""Removes a folder that commands could write to, whatever they left there.

Theory of operation. Run as the owner of the tree, never with more rights. The walk
is iterative and holds one descriptor: down by name without following links, up by
``..`` with the folder's identity checked, so that thousands of levels need neither
recursion nor descriptors, and a folder that is moved away meanwhile is noticed. All
names are removed relative to an open folder that was reached that way. Folders that
forbid their owner to enter are opened up through a descriptor (O_PATH and
``/proc/self/fd``), never by name. What lies on another mount is left alone.

Whoever still runs can put new files in; so the walk starts again while it makes
progress and has time, and then says what is left.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from dataclasses import dataclass
from pathlib import Path

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_LOOK = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_FOLDERS_AT_ONCE = 1024
"""Names of subfolders remembered a level; the others are found on the way back."""

_ERRORS_KEPT = 10


@dataclass(frozen=True, slots=True)
class Removal:
    """What a removal came to."""

    complete: bool
    """Nothing is left."""
    removed: int
    """Files and folders that are gone."""
    errors: tuple[str, ...] = ()
    """Why something is left: the first few reasons."""


class _MovedError(Exception):
    """The tree changed under the walk: it has to start again."""


class _OutOfTimeError(Exception):
    """The time allowed is over."""


@dataclass(slots=True)
class _Level:
    """One folder on the way from the top to where the walk is."""

    name: str
    identity: tuple[int, int]
    pending: list[str]
    """Subfolders still to be entered."""
    stuck: set[str]
    """Names that cannot be removed, so that they are not tried again."""


def remove_tree(where: str | int, *, max_seconds: float | None = None) -> Removal:
    """Remove the folder *where*; of a descriptor, everything in it.

    Never raises for what it finds: an error costs only the name it belongs to.

    Args:
        where: Absolute path of the folder, or a descriptor of it (stays open).
        max_seconds: Stop after this time; None means until done.

    Returns:
        What was removed, and why something is left.
    """
    walk = _Walk(max_seconds)
    if isinstance(where, int):
        complete = walk.clear(where)
        return walk.result(complete=complete)
    above, name = os.path.split(where.rstrip("/"))
    try:
        parent = os.open(above or "/", _LOOK)
    except OSError as error:
        walk.note(where, error)
        return walk.result(complete=error.errno == errno.ENOENT)
    try:
        complete = walk.remove_folder(parent, name)
        return walk.result(complete=complete)
    finally:
        os.close(parent)


class _Walk:
    def __init__(self, max_seconds: float | None) -> None:
        self._deadline = None if max_seconds is None else time.monotonic() + max_seconds
        self._removed = 0
        self._errors: list[str] = []
        self._levels: list[_Level] = []
        self._mount = 0, b""

    def note(self, name: str, error: OSError) -> None:
        if len(self._errors) < _ERRORS_KEPT:
            self._errors.append(f"{name}: {error.strerror}")

    def result(self, *, complete: bool) -> Removal:
        errors = () if complete else tuple(self._errors)
        return Removal(complete, self._removed, errors)

    def remove_folder(self, parent: int, name: str) -> bool:
        try:
            fd = _open_folder(name, parent)
        except FileNotFoundError:
            return True
        except OSError as error:
            self.note(name, error)
            return False
        try:
            return self.clear(fd) and self._rmdir(name, parent)
        finally:
            os.close(fd)

    def clear(self, top: int) -> bool:
        """Empty the folder *top*, again and again while that helps."""
        self._mount = _mount_of(top)
        while True:
            before = self._removed
            self._errors.clear()
            try:
                emptied = self._clear_once(top)
            except _MovedError:
                emptied = False
            except _OutOfTimeError:
                self._errors.append("the time allowed was over")
                return False
            except OSError as error:
                self.note(".", error)
                emptied = False
            if emptied or self._removed == before:
                return emptied

    def _clear_once(self, top: int) -> bool:
        here = _open_folder(".", top)
        try:
            self._levels = [_level("", here)]
            while True:
                level = self._levels[-1]
                if level.pending:
                    here = self._down(here, level)
                elif self._list(here, level):
                    continue
                elif len(self._levels) == 1:
                    return not level.stuck
                else:
                    here = self._up(here)
        finally:
            os.close(here)

    def _list(self, fd: int, level: _Level) -> bool:
        """Unlink the files of a folder and collect subfolders; True if there are."""
        with os.scandir(fd) as entries:
            for entry in entries:
                if self._deadline is not None and time.monotonic() > self._deadline:
                    raise _OutOfTimeError
                if entry.name in level.stuck:
                    continue
                if not entry.is_dir(follow_symlinks=False):
                    self._unlink(entry.name, fd, level)
                elif len(level.pending) < _FOLDERS_AT_ONCE:
                    level.pending.append(entry.name)
        return bool(level.pending)

    def _unlink(self, name: str, fd: int, level: _Level) -> None:
        try:
            os.unlink(name, dir_fd=fd)
            self._removed += 1
        except FileNotFoundError:
            pass
        except OSError as error:
            self.note(name, error)
            level.stuck.add(name)

    def _down(self, here: int, level: _Level) -> int:
        """Enter the next subfolder and return it; *here* if that is not possible."""
        name = level.pending.pop()
        try:
            child = _open_folder(name, here)
        except FileNotFoundError:
            return here
        except OSError as error:
            self.note(name, error)
            level.stuck.add(name)
            return here
        if _mount_of(child) != self._mount:
            os.close(child)
            self.note(name, OSError(errno.EXDEV, "it lies on another mount"))
            level.stuck.add(name)
            return here
        self._levels.append(_level(name, child))
        os.close(here)
        return child

    def _up(self, here: int) -> int:
        """Return to the parent and remove the folder just emptied."""
        done = self._levels.pop()
        parent = os.open("..", _OPEN, dir_fd=here)
        found = os.fstat(parent)
        if (found.st_dev, found.st_ino) != self._levels[-1].identity:
            os.close(parent)
            raise _MovedError
        os.close(here)
        if not self._rmdir(done.name, parent):
            self._levels[-1].stuck.add(done.name)
        return parent

    def _rmdir(self, name: str, parent: int) -> bool:
        try:
            os.rmdir(name, dir_fd=parent)
        except FileNotFoundError:
            return True
        except OSError as error:
            self.note(name, error)
            return False
        self._removed += 1
        return True


def _level(name: str, fd: int) -> _Level:
    found = os.fstat(fd)
    return _Level(name, (found.st_dev, found.st_ino), [], set())


def _open_folder(name: str, parent: int) -> int:
    """Open a folder to read it, opening it up first if its mode forbids that."""
    fd = os.open(name, _LOOK, dir_fd=parent)
    try:
        mode = stat.S_IMODE(os.fstat(fd).st_mode)
        if mode & stat.S_IRWXU != stat.S_IRWXU:
            # By descriptor: the name may lead elsewhere by now.
            with contextlib.suppress(OSError):
                Path(f"/proc/self/fd/{fd}").chmod(mode | stat.S_IRWXU)
        return os.open(".", _OPEN, dir_fd=fd)
    finally:
        os.close(fd)


def _mount_of(fd: int) -> tuple[int, bytes]:
    """Return what tells one mount from another, bind mounts of one disk too."""
    device = os.fstat(fd).st_dev
    try:
        info = os.open(f"/proc/self/fdinfo/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return device, b""
    try:
        lines = os.read(info, 4096).splitlines()
    finally:
        os.close(info)
    return device, next((x for x in lines if x.startswith(b"mnt_id:")), b"")
