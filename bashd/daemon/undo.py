"""Putting back what a command changed although it must not; nothing is ever lost.

What got through is renamed aside in its own folder, with a name that nobody runs or
reads, and then the former state is put in its place. Every folder is opened without
following links, so that a path that was swapped meanwhile leads nowhere. Run as the
peer: more than the peer may do cannot happen.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Generator

from bashd.core.metadata import aside_name
from bashd.launcher import kernel

_CREATE = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def parent_of(path: str) -> Generator[tuple[int, str], None, None]:
    """Open the folder of *path* through no link; yields (descriptor, name).

    Raises:
        OSError: It is not there, or is reached through a link now.
    """
    folder, _, name = path.rpartition("/")
    fd = kernel.open_no_symlinks(folder or "/", os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield fd, name
    finally:
        os.close(fd)


def put_aside(path: str, run_id: str) -> str:
    """Rename what is at *path* out of the way; returns where it is now.

    Files lose their executable bits on the way.

    Raises:
        OSError: It could not be renamed.
    """
    with parent_of(path) as (fd, name):
        aside = aside_name(name, run_id)
        if _exists(fd, aside):
            aside = f"{aside}-{secrets.token_hex(3)}"
        os.rename(name, aside, src_dir_fd=fd, dst_dir_fd=fd)
        with contextlib.suppress(OSError):
            # Nobody runs it under that name, so this is for tidiness.
            _strip_execution(fd, aside)
    return f"{path.rpartition('/')[0]}/{aside}"


def disarm(path: str) -> None:
    """Take the executable bits from a regular file.

    Raises:
        OSError: Its mode cannot be changed, or it may be run but not read.
    """
    with parent_of(path) as (fd, name):
        _strip_execution(fd, name)


def _strip_execution(folder_fd: int, name: str) -> None:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    info = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
    if not stat.S_ISREG(info.st_mode) or not info.st_mode & 0o111:
        return
    fd = os.open(name, flags, dir_fd=folder_fd)
    try:
        os.fchmod(fd, stat.S_IMODE(info.st_mode) & ~0o111)
    finally:
        os.close(fd)


def restore_file(path: str, content: bytes, mode: int) -> None:
    """Put a file with *content* at *path*, in one step.

    Raises:
        OSError: It could not be written.
    """
    with parent_of(path) as (fd, name):
        temporary = f".bashd-{secrets.token_hex(6)}"
        file = os.open(temporary, _CREATE, 0o600, dir_fd=fd)
        try:
            with os.fdopen(file, "wb") as out:
                out.write(content)
                os.fchmod(out.fileno(), mode)
            os.rename(temporary, name, src_dir_fd=fd, dst_dir_fd=fd)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=fd)
            raise


def restore_link(path: str, target: bytes) -> None:
    """Put a symbolic link at *path*, where nothing must be.

    Raises:
        OSError: It could not be made.
    """
    with parent_of(path) as (fd, name):
        os.symlink(target, os.fsencode(name), dir_fd=fd)


def restore_folder(path: str, mode: int) -> None:
    """Make the folder at *path* unless it is there.

    Raises:
        OSError: It could not be made.
    """
    with parent_of(path) as (fd, name), contextlib.suppress(FileExistsError):
        os.mkdir(name, mode, dir_fd=fd)


def restore_mode(path: str, mode: int) -> None:
    """Give a file or folder its mode back.

    Raises:
        OSError: It could not be changed.
    """
    fd = kernel.open_no_symlinks(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        os.fchmod(fd, mode)
    finally:
        os.close(fd)


def _exists(folder_fd: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
    except OSError:
        return False
    return True
