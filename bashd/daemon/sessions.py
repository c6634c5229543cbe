"""Opening, finding and closing sessions; what each one owns is made and ended here."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import trio

from bashd.core.config import Config
from bashd.core.errors import InvalidParamsError, LimitError, UnknownSessionError
from bashd.core.model import Mode
from bashd.daemon import recall, survey
from bashd.daemon.cells import Environment, SessionCells
from bashd.daemon.folders import DaemonFolders, make_session, remove_session
from bashd.daemon.identity import Identity, run_as
from bashd.daemon.job_time import JobTime
from bashd.daemon.network import SessionNetwork
from bashd.daemon.output import OutputBudget, OutputDirectory
from bashd.daemon.records import Records
from bashd.daemon.session import Session
from bashd.daemon.session_log import SessionLog
from bashd.daemon.shares import Shares

_CLOSE_TIMEOUT_S = 30.0

DefaultKey = tuple[int, str, bool, str | None]
"""uid, canonical folder, whether it is for callers without a session, and the job."""


class Sessions:
    """All sessions of the daemon."""

    def __init__(
        self,
        config: Config,
        folders: DaemonFolders,
        environment: Environment,
        records: Records,
        *,
        shares: Shares,
    ) -> None:
        self._config = config
        self._records = records
        self._folders = folders
        self._environment = environment
        self._by_id: dict[str, Session] = {}
        self._defaults: dict[DefaultKey, Session] = {}
        self._opening: dict[DefaultKey, trio.Lock] = {}
        self._shares = shares
        self._building: Counter[int] = Counter()
        """Cells that are being built, by uid."""
        self._retired = trio.Event()
        """A cell has been taken out of use since the last look."""

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._by_id.values()))

    def __len__(self) -> int:
        return len(self._by_id)

    def of_user(self, uid: int) -> list[Session]:
        """Return a user's sessions in the order they were opened."""
        return [s for s in self if s.identity.uid == uid and not s.anonymous]

    def find(self, uid: int, session_id: str) -> Session:
        """Return a user's session by its id.

        Raises:
            UnknownSessionError: No such id, or another user's: both look the same.
        """
        session = self._by_id.get(session_id)
        if session is None or session.identity.uid != uid or session.closing:
            raise UnknownSessionError(
                f'unknown session "{session_id}"; it may have been closed or have'
                " expired, list yours with `bashd session list`"
            )
        return session

    async def default(
        self,
        identity: Identity,
        cwd: str,
        *,
        anonymous: bool = False,
        job: str | None = None,
    ) -> Session:
        """Return the caller's default session for *cwd*, opened on first use.

        Those of different jobs in one folder have nothing in common.
        """
        path = (await run_as(identity, lambda: survey.find_workdir(cwd))).path
        key = (identity.uid, path, anonymous, job)
        session = self._defaults.get(key)
        if session is not None and not session.closing:
            return session
        async with self._opening.setdefault(key, trio.Lock()):
            session = self._defaults.get(key)
            if session is None or session.closing:
                session = await self._open(identity, path)
                session.is_default = True
                session.anonymous = anonymous
                session.job = job
                self._defaults[key] = session
                self.save(session)
        self._opening.pop(key, None)
        return session

    async def open(
        self,
        identity: Identity,
        cwd: str,
        *,
        mode: Mode | None = None,
        policy: str | None = None,
        approval: str | None = None,
    ) -> Session:
        """Open a new session with an unguessable id.

        Raises:
            StartError: *cwd* is not usable.
            LimitError: The user has too many sessions.
        """
        if approval not in (None, "ask", "never"):
            raise InvalidParamsError('approval policy must be one of "ask" or "never"')
        path = (await run_as(identity, lambda: survey.find_workdir(cwd))).path
        session = await self._open(identity, path)
        session.mode_override = mode
        session.policy = policy
        session.approval = approval or self._config.approval.policy
        if mode is not None:
            session.log.append({"type": "bash/sandbox-mode", "mode": str(mode)})
        self.save(session)
        return session

    async def _open(self, identity: Identity, path: str) -> Session:
        limit = self._shares.limits(identity).sessions
        if len(self.of_user(identity.uid)) >= limit:
            raise LimitError(
                f"{limit} sessions are open for this user; close one with"
                " `bashd session close ID`, or raise [limits] sessions"
            )
        return await self._make("s-" + secrets.token_hex(16), identity, path)

    async def _make(self, session_id: str, identity: Identity, path: str) -> Session:
        places = self._folders.places(session_id)
        await make_session(places, identity)
        output = OutputDirectory(places.output_dir, identity.uid, identity.gid)
        network = SessionNetwork(places.lib_dir)
        session = Session(
            session_id=session_id,
            identity=identity,
            cwd=path,
            places=places,
            cells=SessionCells(self._environment, identity, places, network),
            network=network,
            output=output,
            budget=OutputBudget(
                self._shares.limits(identity).session_output_bytes,
                parent=self._shares.output(identity),
            ),
            log=SessionLog(output),
            approval=self._config.approval.policy,
        )
        session.cells.on_change = lambda: self.save(session)
        session.cells.on_retired = self._wake_reaper
        session.cells.room = lambda: self._room_for_cell(identity)
        self._by_id[session_id] = session
        return session

    @contextlib.asynccontextmanager
    async def _room_for_cell(self, identity: Identity) -> AsyncGenerator[None]:
        """Let a cell of a user's be built, in the place of an idle one if need be.

        Raises:
            LimitError: The user has as many as allowed, and all are at work.
        """
        uid, limit = identity.uid, self._shares.limits(identity).cells
        while self._count_cells(uid) >= limit:
            idle = [
                (cell.last_used, session.cells, cell)
                for session in self
                if session.identity.uid == uid
                for cell in session.cells.idle()
            ]
            if not idle:
                raise LimitError(
                    f"{limit} cells of this user are at work; wait for a command to"
                    " end, or raise [limits] cells"
                )
            _, cells, cell = min(idle, key=lambda entry: entry[0])
            await cells.end_cell(cell)
        self._building[uid] += 1
        try:
            yield
        finally:
            self._building[uid] -= 1

    def _count_cells(self, uid: int) -> int:
        live = (len(s.cells.live()) for s in self if s.identity.uid == uid)
        return sum(live) + self._building[uid]

    def save(self, session: Session) -> None:
        """Keep the session's record up to date."""
        if not session.closing:
            self._records.save_session(
                session.session_id, recall.session_record(session)
            )

    async def revive(
        self, session_id: str, record: dict[str, Any], identity: Identity
    ) -> Session:
        """Rebuild a session from the record of a daemon that is gone.

        Raises:
            KeyError, TypeError, ValueError: The record is not one.
        """
        session = await self._make(session_id, identity, record["cwd"])
        override = record["mode_override"]
        session.mode_override = None if override is None else Mode(override)
        session.policy = record["policy"]
        session.approval = record["approval"]
        session.is_default = record["is_default"]
        session.anonymous = record["anonymous"]
        session.job = record.get("job")
        session.job_time = JobTime(*record.get("job_time", ()))
        session.ambient = record["ambient"]
        session.env_removed = tuple(record["env_removed"])
        session.created_at = record["created_at"]
        if session.is_default:
            self._defaults[_default_key(identity.uid, session)] = session
        return session

    async def remove_strays(self) -> None:
        """Remove folders of sessions that no record tells of."""
        for name in [path.name for path in self._folders.sessions_dir.iterdir()]:
            if name in self._by_id:
                continue
            places = self._folders.places(name)
            owner = os.lstat(places.session_dir)
            identity = Identity(owner.st_uid, owner.st_gid, (), "", "/")
            await remove_session(places, identity)

    async def close(self, session: Session, *, keep_record: bool = False) -> None:
        """End what runs in a session and remove everything of it.

        The caller has settled its tasks; this ends the cells, and with them whatever
        hid from a kill.

        Args:
            session: Nothing of it is left afterwards.
            keep_record: The daemon stops, and its successor is to know the session by
                its id: who, where, which mode.
        """
        session.closing = True
        if session.job_time.watch is not None:
            session.job_time.watch.cancel()
        with trio.CancelScope(shield=True), trio.move_on_after(_CLOSE_TIMEOUT_S):
            await session.cells.end()
        for store in session.spilled:
            store.discard()
        session.network.close()
        session.log.close()
        session.output.close()
        self._by_id.pop(session.session_id, None)
        if keep_record and not session.is_default:
            # Its tasks have ended and their output goes: there is nothing to take over.
            self._records.remove_tasks(session.session_id)
        else:
            self._records.remove_session(session.session_id)
        for key, value in list(self._defaults.items()):
            if value is session:
                del self._defaults[key]
        with trio.CancelScope(shield=True):
            await remove_session(session.places, session.identity)

    def _idle_limit_s(self, session: Session) -> float:
        sessions = self._config.sessions
        if session.is_default:
            return sessions.default_idle_timeout_s
        return sessions.idle_timeout_s

    def _wake_reaper(self) -> None:
        self._retired.set()

    async def wait_due(self, least_s: float) -> None:
        """Wait until `reap` may have something to do, and at least for *least_s*.

        At rest nothing is woken that has nothing to do.
        """
        began = trio.current_time()
        # What is made meanwhile is due no sooner than the shortest timeout from now.
        bounds = self._config.sessions
        shortest_s = min(
            self._config.daemon.cell_idle_s,
            bounds.idle_timeout_s,
            bounds.default_idle_timeout_s,
        )
        times = [began + shortest_s]
        for session in self:
            if session.job_time.ends is not None:
                times.append(began)
            times.append(session.cells.due(self._config.daemon.cell_idle_s))
            times.append(session.last_used + self._idle_limit_s(session))
        with trio.move_on_at(min(times)):
            await self._retired.wait()
        self._retired = trio.Event()
        await trio.sleep_until(max(began, trio.current_time()) + least_s)

    async def reap(self) -> list[Session]:
        """End idle cells; return sessions that have been idle for too long."""
        now = trio.current_time()
        expired: list[Session] = []
        for session in self:
            if session.closing:
                continue
            over = session.job_time.is_over
            await session.cells.reap(0 if over else self._config.daemon.cell_idle_s)
            idle = now - session.last_used > self._idle_limit_s(session)
            # Calls that are refused use it too.
            gone = session.is_default and session.job_time.is_forgotten
            in_use = session.active or session.clients
            if not in_use and (idle or gone):
                expired.append(session)
        return expired


def _default_key(uid: int, session: Session) -> DefaultKey:
    return (uid, session.cwd, session.anonymous, session.job)
