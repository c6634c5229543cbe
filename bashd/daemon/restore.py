"""After a crash: sessions and tasks come back from their records.

Order matters: sessions first, then settled tasks, then those that ran, which wait for
their keeper to bring them (`bashd.daemon.adoption`). Whoever is not brought within a
moment is settled as lost, with the runner-failure marker.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import trio

from bashd.core.model import Mode
from bashd.core.policy import Limits
from bashd.daemon import recall, tree
from bashd.daemon.adoption import Brought, KnownCell
from bashd.daemon.background import Background
from bashd.daemon.cell import Cell
from bashd.daemon.cells import BuiltCell
from bashd.daemon.cgroups import CellGroups
from bashd.daemon.output import StreamStore
from bashd.daemon.records import Records
from bashd.daemon.run import Stop
from bashd.daemon.session import Session
from bashd.daemon.sessions import Sessions
from bashd.daemon.task import Task, TaskTable

logger = logging.getLogger(__name__)

_WAIT_S = 5.0
"""Keepers dial every 0.2 s; on a loaded machine they may be late."""


@dataclass(slots=True)
class Restore:
    """Brings back what records tell of; see the module docstring."""

    records: Records
    sessions: Sessions
    tasks: TaskTable
    background: Background
    _known: dict[str, tuple[Session, BuiltCell]] = field(
        default_factory=dict[str, "tuple[Session, BuiltCell]"]
    )
    _waiting: dict[tuple[str, int], Task] = field(
        default_factory=dict["tuple[str, int]", Task]
    )
    _unstarted: list[Task] = field(default_factory=list[Task])
    """Their cell was not there yet, so nobody can bring them: nothing of them ran."""
    _all_brought: trio.Event = field(default_factory=trio.Event)

    async def load(self) -> None:
        """Rebuild sessions and tasks; running ones wait to be brought."""
        self.tasks.counters.update(self.records.load_counters())
        for session_id, record, tasks in self.records.load():
            try:
                session = await self.sessions.revive(
                    session_id, record, recall.identity_of(record)
                )
                cells = recall.cells_of(record)
            except (OSError, KeyError, TypeError, ValueError) as error:
                logger.warning("session %s is lost: %s", session_id, error)
                self.records.remove_session(session_id)
                continue
            for cell_id, built in cells.items():
                self._known[cell_id] = (session, built)
                # So that the session's record goes on to tell of it.
                session.cells.built[cell_id] = built
            session.history.load(self.records.load_runs(session_id))
            for found in sorted(tasks, key=_number):
                self._revive_task(session, found)
        await self.sessions.remove_strays()

    def _revive_task(self, session: Session, record: dict[str, Any]) -> None:
        try:
            stores = [
                StreamStore.reopen(
                    state, directory=session.output, budget=session.budget
                )
                for state in recall.stores_of(record)
            ]
            task = Task(
                task_id=record["task_id"],
                session=session,
                run_id=record["run_id"],
                command=record["command"],
                workdir=record["workdir"],
                owner=record["owner"],
                mode=Mode(record["mode"]),
                stdout=stores[0],
                stderr=stores[1],
                stop=Stop(),
            )
            recall.restore_result(task, record)
        except (OSError, KeyError, TypeError, ValueError) as error:
            logger.warning(
                "a task of session %s is lost: %s", session.session_id, error
            )
            return
        self.tasks.add(task)
        for store in stores:
            store.when_lost(partial(self.background.save, task))
        if not task.settled:
            session.active += 1
            if task.cell_id is None:
                self._unstarted.append(task)
            else:
                self._waiting[task.cell_id, task.serial] = task
            return
        if not task.announced:
            session.notices.append(task.task_id)
        if not task.taken and task.owner is not None:
            session.untaken.append(task.task_id)

    def find(self, cell_id: str) -> KnownCell | None:
        """Return the cell of a record, for whoever claims to bring it."""
        known = self._known.get(cell_id)
        if known is None:
            return None
        session, built = known
        groups = _groups(session, built)
        return KnownCell(session.identity.uid, built.secret, built.mode, groups)

    def take(self, cell_id: str, cell: Cell, brought: list[Brought]) -> None:
        """Go on with the tasks of a cell that came back."""
        session, built = self._known.pop(cell_id)
        session.cells.retired.append(cell)
        session.cells.environment.spawn(cell)
        session.cells.built[cell_id] = built
        session.cells.on_change()
        for one in brought:
            task = self._waiting.pop((one.cell_id, one.serial), None)
            if task is None:
                self.background.end_stranger(one.spare)
            else:
                self.background.resume(task, one.spare, built)
        if not self._waiting:
            self._all_brought.set()

    async def settle_missing(self) -> None:
        """Settle the tasks that nobody has brought in time; end what is left of them."""
        while self._unstarted:
            self.background.settle_lost(self._unstarted.pop(0))
        if self._waiting:
            with trio.move_on_after(_WAIT_S):
                await self._all_brought.wait()
        missing, cells = list(self._waiting.values()), list(self._known.values())
        self._waiting.clear()
        self._known.clear()
        await _end_remains(missing, cells)
        for task in missing:
            self.background.settle_lost(task)


def _groups(session: Session, built: BuiltCell) -> CellGroups | None:
    cgroups = session.cells.environment.cgroups
    # Nothing new starts in them, so there is nothing to limit.
    return cgroups.reopen(built.groups, Limits())


async def _end_remains(
    tasks: list[Task], cells: list[tuple[Session, BuiltCell]]
) -> None:
    """End what runs on without its keeper, and remove its cgroups."""
    async with trio.open_nursery() as nursery:
        for session, built in cells:
            groups = _groups(session, built)
            if groups is not None:
                nursery.start_soon(groups.end)
        if tasks:
            markers = [(0, tree.MARKER + task.run_id.encode()) for task in tasks]
            nursery.start_soon(trio.to_thread.run_sync, tree.kill_orphans, markers)


def _number(record: dict[str, Any]) -> int:
    return int(str(record.get("task_id", "bash-0")).rpartition("-")[2] or 0)
