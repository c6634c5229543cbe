"""Which processes of a daemon are cells' own: keepers, zygotes and spares."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from tests.support.enclosure import describe


def is_zygote(pid: int) -> bool:
    """Whether a process forks spares (a newborn one looks the same for a moment)."""
    return _name(pid) == "bashd-zygote"


def is_spare(pid: int) -> bool:
    """Whether a process waits for its command, or has ended before it came."""
    return _name(pid) == "bashd-spare"


def is_launcher(pid: int) -> bool:
    """Whether a process is a cell's own and no command."""
    if _name(pid) in ("bashd-keeper", "bashd-zygote", "bashd-spare"):
        return True
    # Before it is one; bubblewrap's own command line names the keeper as well.
    _, program, *rest = f"{describe(pid)} ".split(" ")
    return "python" in program and "keeper.main" in " ".join(rest)


def keepers(pids: Iterable[int]) -> list[int]:
    """Return the cells' first processes: launchers that no launcher has started."""
    return [pid for pid in pids if is_launcher(pid) and not is_launcher(parent_of(pid))]


def parent_of(pid: int) -> int:
    """Return a process's parent; 0 when there is no such process."""
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/stat").read_text()
        return int(text.rpartition(")")[2].split()[1])
    return 0


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().rstrip("\n")
    return ""
