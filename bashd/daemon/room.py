"""Whether there is room for one more: descriptors of this process, space on a disk.

Asked before something is begun, because what runs out in the middle costs others: a
descriptor that cannot be received takes a whole message with it.
"""

from __future__ import annotations

import os
import resource
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

RESERVE: Final = 96
"""Descriptors kept for what is under way: a cell's batch of spares takes four each,
output files two a task, and answers have to be read from somewhere."""
_LEAST_BYTES: Final = 64 * 1024
"""Less than this and not even a session's own files can be written."""


def descriptors_left() -> int:
    """Return how many more descriptors this process may open, at the least.

    The kernel gives the lowest free number, so that number says it without counting.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        fd = os.open("/", os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return 0
    os.close(fd)
    return max(limit - fd, 0)


def disk_is_full(folder: Path) -> bool:
    """Whether nothing more can be written below *folder*."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return False
    # Some file systems do not count files, and say that there are none.
    no_files = found.f_files > 0 and found.f_favail == 0
    return no_files or found.f_bavail * found.f_frsize < _LEAST_BYTES
