"""A cgroup for every command, at no command's expense.

Theory of operation. Moving a process between cgroups waits for an RCU grace period: 12
ms as a rule, hundreds at times. So only the first process of a cell is moved, while
its interpreter starts; spares are then *born* into groups of their own, which the
daemon makes when it asks for them::

    <own>/bashd/<cell>/keeper    the cell's own processes
    <own>/bashd/<cell>/<n>       one spare, the command it becomes, all its descendants

A kill is exact, limits hold from the first instruction on and nothing is missed in the
account. A cell whose spares cannot be born into a group (Linux before 5.7) goes on
without. Controllers of version 1 limit a cell as a whole.

What lives on in the group of a command that has settled (a background child of its
shell) keeps the group; its removal is tried again at growing intervals, and the end of
the cell ends it.
"""

from __future__ import annotations

import logging
import math
import os
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from bashd.daemon.cgroup import Group, LegacyGroup, remove_folder, write
from bashd.daemon.cgroup_places import Hierarchy, find_hierarchies, give_back

if TYPE_CHECKING:
    from bashd.core.policy import Limits

logger = logging.getLogger(__name__)

_SWEEP_S: Final = 1.0
"""Between removals: many at once, because waking up for each costs more than it does."""
_LONGEST_RETRY_S: Final = 20.0
_REMOVALS_PER_TURN: Final = 16
"""Some 50 µs each."""
_END_S: Final = 5.0
"""For what was killed to be gone; only a process in uninterruptible sleep takes it."""
_KEEPER: Final = "keeper"
_OWN_PIDS: Final = 70
"""Of a cell's own processes, where the whole cell is limited: keeper, zygote, runner
and the most spares that can be configured."""


@dataclass(slots=True)
class _Leftover:
    group: Group
    due_s: float
    delay_s: float


class Cgroups:
    """The daemon's groups. Does nothing where it may make none.

    Args:
        hierarchies: Where; those of `find`.
    """

    def __init__(self, hierarchies: tuple[Hierarchy, ...] = ()) -> None:
        self.hierarchies = hierarchies
        self._leftovers: list[_Leftover] = []
        self._wake = trio.Event()

    @classmethod
    def find(cls) -> Cgroups:
        """Look where this daemon may make groups."""
        try:
            return cls(find_hierarchies())
        except OSError as error:
            logger.warning("no cgroups: %s", error)
            return cls()

    @property
    def limits(self) -> frozenset[str]:
        """Controllers that keep limits."""
        return frozenset[str]().union(*(h.controllers for h in self.hierarchies))

    def of_cell(self, cell_id: str, limits: Limits, uid: int) -> CellGroups | None:
        """Return the groups of a new cell whose commands run as *uid*."""
        used = tuple(h for h in self.hierarchies if h.is_for(limits))
        places = tuple((h, h.tree / cell_id) for h in used)
        owner = None if uid == os.geteuid() else uid
        return CellGroups(self, places, limits, owner) if places else None

    def reopen(self, folders: tuple[str, ...], limits: Limits) -> CellGroups | None:
        """Return the groups of a cell that an earlier daemon made in *folders*."""
        places = tuple(
            (hierarchy, path)
            for path in map(Path, folders)
            for hierarchy in self.hierarchies
            if path.parent == hierarchy.tree
        )
        return CellGroups(self, places, limits, None) if places else None

    async def serve(self) -> None:
        """Remove what is left of commands until cancelled."""
        while True:
            with trio.move_on_at(self._next_due_s()):
                await self._wake.wait()
                await trio.sleep(_SWEEP_S)
            self._wake = trio.Event()
            await self._sweep()

    async def _sweep(self) -> None:
        now_s = trio.current_time()
        due = [left for left in self._leftovers if left.due_s <= now_s]
        self._leftovers = [left for left in self._leftovers if left.due_s > now_s]
        for number, left in enumerate(due, start=1):
            if not left.group.remove():
                self._retry(left.group, min(left.delay_s * 2, _LONGEST_RETRY_S))
            if number % _REMOVALS_PER_TURN == 0:
                await trio.lowlevel.checkpoint()

    def retire(self, group: Group) -> None:
        """Remove a group soon, or once nothing is in it."""
        self._leftovers.append(_Leftover(group, 0, _SWEEP_S))
        self._wake.set()

    def _retry(self, group: Group, delay_s: float) -> None:
        due_s = trio.current_time() + delay_s
        self._leftovers.append(_Leftover(group, due_s, delay_s))

    def _next_due_s(self) -> float:
        return min((left.due_s for left in self._leftovers), default=math.inf)

    def forget_below(self, place: Path) -> None:
        """Give up retrying what is in a cell's folder: the cell removes it."""
        self._leftovers = [x for x in self._leftovers if x.group.path.parent != place]

    def close(self) -> None:
        """Give the daemon's own place back; what is not empty stays."""
        give_back(self.hierarchies)


@dataclass(slots=True)
class CellGroups:
    """The groups of one cell."""

    cgroups: Cgroups
    places: tuple[tuple[Hierarchy, Path], ...]
    """The cell's folder in each hierarchy."""
    limits: Limits
    owner: int | None
    """Uid whose processes are born into the groups; None: the daemon's own."""
    _ready: bool = field(default=False)
    _failed: bool = field(default=False)

    @property
    def folders(self) -> tuple[str, ...]:
        """What `Cgroups.reopen` needs."""
        return tuple(str(path) for _, path in self.places)

    @property
    def _unified(self) -> tuple[Hierarchy, Path] | None:
        return next((place for place in self.places if place[0].unified), None)

    async def enter(self, pid: int) -> None:
        """Move the first process of the cell in, before it has children.

        Where that fails the cell goes on without groups, and says so in the log.
        """
        # In a thread: this is the move that waits.
        self._ready = await trio.to_thread.run_sync(partial(self._enter, pid))

    def _enter(self, pid: int) -> bool:
        try:
            for hierarchy, path in self.places:
                if hierarchy.unified:
                    hierarchy.make_cell(path, self.owner)
                    (path / _KEEPER).mkdir()
                    write(path / _KEEPER / "cgroup.procs", str(pid))
                else:
                    hierarchy.make_tree()
                    LegacyGroup(path, hierarchy.kind).make(self.limits, _OWN_PIDS)
                    write(path / "cgroup.procs", str(pid))
        except OSError as error:
            logger.warning("a cell without cgroups: %s", error)
            return False
        return self._unified is not None

    def make(self, serial: int) -> tuple[Group, int] | None:
        """Make the group of a new spare; returns it and its folder's descriptor."""
        if not self._ready:
            return None
        group = self._group(serial)
        assert group is not None  # noqa: S101 - ready means there is such a hierarchy
        try:
            return group, group.make(self.limits, self.owner)
        except OSError as error:
            if not self._failed:
                logger.warning("a command without a cgroup: %s", error)
            self._failed = True
            return None

    def _group(self, serial: int) -> Group | None:
        if self._unified is None:
            return None
        hierarchy, path = self._unified
        return Group(f"{path}/{serial}", hierarchy.controllers)

    def adopted(self, serial: int) -> Group | None:
        """Return the group of a command that an earlier daemon started."""
        group = self._group(serial)
        return group if group is not None and group.path.is_dir() else None

    def oom_kills(self) -> int:
        """Return the out-of-memory kills of the cell as a whole; 0 if not counted."""
        return max(
            (
                LegacyGroup(path, hierarchy.kind).oom_kills()
                for hierarchy, path in self.places
                if hierarchy.kind == "memory"
            ),
            default=0,
        )

    def kill(self, spared: frozenset[int] = frozenset()) -> bool:
        """Kill every command of the cell but those *spared*; the keeper stays.

        Returns:
            Whether that was exact.
        """
        if self._unified is None:
            return False
        hierarchy, path = self._unified
        outcomes = [
            Group(str(entry), hierarchy.controllers).kill()
            for entry in _folders_in(path)
            if entry.name.isdecimal() and int(entry.name) not in spared
        ]
        return all(outcomes)

    async def end(self) -> None:
        """Kill what is left, the cell's own processes too, and remove all of it."""
        self._ready = False
        if self._unified is not None:
            hierarchy, path = self._unified
            self.cgroups.forget_below(path)
            Group(str(path), hierarchy.controllers).kill()
        with trio.CancelScope(shield=True), trio.move_on_after(_END_S):
            delay_s = 0.002
            while not self._remove():
                await trio.sleep(delay_s)
                delay_s = min(delay_s * 2, 1.0)

    def _remove(self) -> bool:
        left = False
        for _, path in self.places:
            for entry in _folders_in(path):
                left |= not remove_folder(entry)
            left |= not remove_folder(path)
        return not left


def _folders_in(path: Path) -> list[Path]:
    try:
        return [entry for entry in path.iterdir() if entry.is_dir()]
    except OSError:
        return []
