"""Whether something of a command outlives its shell: ``&``, setsid, a double fork.

Such a process may go on writing to the workspace after its command has settled. With
a cgroup of its own a command tells exactly. Without, the orphans are the keeper's: it
adopts them, and whatever child of it is neither zygote nor spare is one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bashd.daemon.pidfd import host_pid
from bashd.daemon.tree import children

if TYPE_CHECKING:
    from bashd.daemon.cell import Cell
    from bashd.daemon.cgroup import Group

_NOBODY: Final = frozenset[int]()


@dataclass(slots=True)
class CellFamily:
    """The keeper of one cell and its children, by the host's pids."""

    cell: Cell
    keeper_pid: int
    zygote_pid: int

    @classmethod
    def of_new_cell(cls, cell: Cell, *, has_runner: bool) -> CellFamily:
        """Look at a cell that has just said hello: the zygote is its only child.

        Args:
            cell: It.
            has_runner: bubblewrap stands between the daemon and the keeper.
        """
        keeper = cell.process.pid
        if has_runner:
            keeper = next(iter(children(keeper)), 0)
        return cls(cell, keeper, next(iter(children(keeper)), 0))

    def strangers(self) -> frozenset[int]:
        """Return children of the keeper that are no zygote and no known spare."""
        found, pidfds = children(self.keeper_pid), self.cell.pidfds()
        if len(found) == len(pidfds) + 1 and self.zygote_pid in found:
            # Who is known stays a child until we have taken note of its end, so these
            # are all. It is nearly always so, and asking for each pid is not free.
            return _NOBODY
        spares = {host_pid(fd) for fd in pidfds}
        return frozenset(found) - spares - {self.zygote_pid}


@dataclass(slots=True)
class Leftover:
    """What may be left of one settled command."""

    family: CellFamily
    group: Group | None
    pids: frozenset[int]
    """Strangers right after it; empty where a cgroup tells."""

    @classmethod
    def look(cls, family: CellFamily, group: Group | None) -> Leftover | None:
        """Return what may be left of a command that has just settled, or None."""
        if group is not None:
            return cls(family, group, frozenset()) if group.pids() else None
        pids = family.strangers()
        return cls(family, None, pids) if pids else None

    def was_real(self) -> bool:
        """Whether it was more than a spare on its way."""
        if self.group is not None:
            return True
        known = {host_pid(fd) for fd in self.family.cell.pidfds()}
        return bool(self.pids - known)

    def is_gone(self) -> bool:
        """Whether nothing of it is there any more."""
        if self.family.cell.lost:
            return True
        if self.group is not None:
            return not self.group.pids()
        return not self.pids & self.family.strangers()
