"""What a pidfd says of its process, as this process's namespace numbers it."""

from __future__ import annotations

from pathlib import Path


def host_pid(pidfd: int) -> int:
    """Return the pid behind a pidfd; 0 when it has been reaped.

    Source: pidfd_open(2), the Pid line of /proc/self/fdinfo.
    """
    try:
        with Path(f"/proc/self/fdinfo/{pidfd}").open(encoding="ascii") as file:
            for line in file:
                if line.startswith("Pid:"):
                    return max(int(line.split()[1]), 0)
    except (OSError, ValueError):
        return 0
    return 0
