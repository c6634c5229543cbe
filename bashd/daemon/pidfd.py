"""What a pidfd says of its process, as this process's namespace numbers it."""

from __future__ import annotations

import os


def host_pid(pidfd: int) -> int:
    """Return the pid behind a pidfd; 0 when it has been reaped.

    Source: pidfd_open(2), the Pid line of /proc/self/fdinfo.
    """
    try:
        fd = os.open(f"/proc/self/fdinfo/{pidfd}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        text = os.read(fd, 512)
    finally:
        os.close(fd)
    _, found, rest = text.partition(b"\nPid:\t")
    return max(int(rest.partition(b"\n")[0]), 0) if found else 0
