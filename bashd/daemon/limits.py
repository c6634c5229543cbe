"""What of a policy's limits each process is given, beside what its cgroup keeps.

A cgroup limits a command as a whole; where there is none, or none with the controller,
a limit of single processes has to do, and does less:

- Memory. RLIMIT_DATA bounds what one process may have, not all together. It counts
  what can be written, so programs that only reserve address space (Go, Java, Node)
  work, which they do not under RLIMIT_AS.
- Processes. RLIMIT_NPROC counts every thread of the user, those outside too, and does
  not bind uid 0. So it is set to what there is of the user's when the cell is built,
  and as many more as the policy allows. In a user namespace of its own the count
  begins at nothing (Linux 5.14).
- Descriptors. The policy's number is the hard limit. The soft one is what the daemon was
  started with, not what it raised it to for itself: select(2) breaks beyond 1024, and
  some programs close every number up to the limit.
"""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bashd.core.policy import Limits

PIDS = "pids"
MEMORY = "memory"


def rlimits(
    limits: Limits, *, kept: frozenset[str], others: int | None, open_files: int
) -> tuple[tuple[int, int, int], ...]:
    """Return a command's resource limits as (RLIMIT number, soft, hard).

    Args:
        limits: The policy's.
        kept: Controllers whose limits a cgroup keeps.
        others: Threads that count beside the command's own; None where no limit of
            the kind binds (uid 0).
        open_files: Soft limit on descriptors of whoever started the daemon.
    """
    processes = memory = None
    if PIDS not in kept and limits.pids is not None and others is not None:
        processes = limits.pids + others
    if MEMORY not in kept:
        memory = limits.memory_bytes
    most_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if limits.open_files is not None:
        most_files = _least(limits.open_files, most_files)
    pairs = (
        (resource.RLIMIT_FSIZE, limits.file_size_bytes),
        (resource.RLIMIT_CORE, limits.core_bytes),
        (resource.RLIMIT_CPU, limits.cpu_s),
        (resource.RLIMIT_DATA, memory),
        (resource.RLIMIT_NPROC, processes),
    )
    return (
        (resource.RLIMIT_NOFILE, _least(open_files, most_files), most_files),
        *((kind, value, value) for kind, value in pairs if value is not None),
    )


def _least(one: int, other: int) -> int:
    if resource.RLIM_INFINITY in (one, other):
        return max(one, other)  # the other one: infinity is -1
    return min(one, other)


def threads_of(uid: int) -> int:
    """Count the threads of a user, as RLIMIT_NPROC counts them: by real uid."""
    count = 0
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            # It may end while we look.
            with contextlib.suppress(OSError, ValueError):
                count += _threads_if(uid, (folder / "status").read_text())
    return count


def _threads_if(uid: int, status: str) -> int:
    fields: dict[str, str] = {}
    for line in status.splitlines():
        name, _, value = line.partition(":")
        fields[name] = value
    return int(fields["Threads"]) if int(fields["Uid"].split()[0]) == uid else 0
