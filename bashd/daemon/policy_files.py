"""Reading configuration and policy files: text, and the stamp that tells a change."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import bashd
from bashd.core.errors import ConfigError

MAX_FILE_BYTES: Final = 1 << 20
"""Far above any policy written by hand; bounds what a peer's file can cost."""


class Stamp(NamedTuple):
    """What tells one state of a file from another, from stat(2).

    Any change of content, owner or mode changes the ctime, so the mtime, which anyone
    may set, is not needed.
    """

    dev: int
    ino: int
    size: int
    ctime_ns: int
    uid: int
    mode: int


Read = Callable[[str], str | None]
"""Returns a file's text, None where it is missing."""
TakeStamp = Callable[[str], Stamp | None]
"""Returns a file's stamp, None where it is missing."""


def take_stamp(path: str) -> Stamp | None:
    """Stamp a file or folder; None where it is missing.

    Raises:
        ConfigError: It cannot be looked at.
    """
    try:
        found = os.stat(path)  # noqa: PTH116 - several a call, half the time of Path
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    return Stamp(
        found.st_dev,
        found.st_ino,
        found.st_size,
        found.st_ctime_ns,
        found.st_uid,
        found.st_mode,
    )


def read_text(path: str) -> str | None:
    """Read a configuration file; None where it is missing.

    Raises:
        ConfigError: It cannot be read, is too large or is not UTF-8.
    """
    try:
        # Non-blocking, so that a FIFO of that name cannot hold the daemon up.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        with os.fdopen(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise ConfigError(f"{path}: not a regular file; remove it")
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    return decode(data, path)


def decode(data: bytes, path: str) -> str:
    """Return the text of a configuration file's bytes.

    Raises:
        ConfigError: There are too many, or they are not UTF-8.
    """
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"{path}: larger than {MAX_FILE_BYTES} bytes; shorten it")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: not UTF-8 at byte {error.start}; save it as UTF-8"
        ) from None


def shipped_dir() -> str:
    """Return the folder of the shipped policies: the wheel's, else the checkout's."""
    package = Path(bashd.__file__).parent
    packed = package / "share" / "policies"
    return str(packed if packed.is_dir() else package.parent / "policies")
