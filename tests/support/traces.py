"""What a process has on the machine: mounts it can see, files, descriptors."""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter
from pathlib import Path


def mounts() -> frozenset[str]:
    """Return the mounts of this mount namespace, without their volatile ids."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return frozenset(line.split(" ", 2)[2] for line in lines)


def files(folder: Path) -> frozenset[str]:
    """Return every path below *folder*."""
    found: set[str] = set()
    for path, folders, names in os.walk(folder):
        found.update(str(Path(path) / name) for name in (*folders, *names))
    return frozenset(found)


def descriptors(pid: int) -> Counter[str]:
    """Return what the descriptors of *pid* lead to, and how many lead there."""
    targets: Counter[str] = Counter()
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                # Inode numbers differ between two sockets that mean the same.
                targets[re.sub(r":\[\d+\]$", "", str(link.readlink()))] += 1
    return targets
