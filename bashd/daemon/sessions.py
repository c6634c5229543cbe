"""Opening, finding and closing sessions; what each one owns is made and ended here."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator

import trio

from bashd.core.config import Config
from bashd.core.errors import InvalidParamsError, LimitError, UnknownSessionError
from bashd.core.model import Mode
from bashd.daemon import survey
from bashd.daemon.cells import Environment, SessionCells
from bashd.daemon.folders import DaemonFolders, make_session, remove_session
from bashd.daemon.identity import Identity, run_as
from bashd.daemon.network import SessionNetwork
from bashd.daemon.output import OutputBudget, OutputDirectory
from bashd.daemon.session import Session
from bashd.daemon.session_log import SessionLog

_CLOSE_TIMEOUT_S = 30.0


class Sessions:
    """All sessions of the daemon."""

    def __init__(
        self, config: Config, folders: DaemonFolders, environment: Environment
    ) -> None:
        self._config = config
        self._folders = folders
        self._environment = environment
        self._by_id: dict[str, Session] = {}
        self._defaults: dict[tuple[int, str], Session] = {}
        self._opening: dict[tuple[int, str], trio.Lock] = {}
        self._budget = OutputBudget(config.limits.output_bytes)

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
        self, identity: Identity, cwd: str, *, anonymous: bool = False
    ) -> Session:
        """Return the caller's default session for *cwd*, opened on first use."""
        path = (await run_as(identity, lambda: survey.find_workdir(cwd))).path
        key = (identity.uid, path + ("\0" if anonymous else ""))
        session = self._defaults.get(key)
        if session is not None and not session.closing:
            return session
        async with self._opening.setdefault(key, trio.Lock()):
            session = self._defaults.get(key)
            if session is None or session.closing:
                session = await self._open(identity, path)
                session.is_default = True
                session.anonymous = anonymous
                self._defaults[key] = session
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
        return session

    async def _open(self, identity: Identity, path: str) -> Session:
        limit = self._config.limits.sessions
        if len(self.of_user(identity.uid)) >= limit:
            raise LimitError(
                f"{limit} sessions are open for this user; close one with"
                " `bashd session close ID`, or raise [limits] sessions"
            )
        session_id = "s-" + secrets.token_hex(16)
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
                self._config.limits.session_output_bytes, parent=self._budget
            ),
            log=SessionLog(output),
            approval=self._config.approval.policy,
        )
        self._by_id[session_id] = session
        return session

    async def close(self, session: Session) -> None:
        """End what runs in a session and remove everything of it.

        The caller has settled its tasks; this ends the cells, and with them whatever
        hid from a kill.
        """
        session.closing = True
        with trio.CancelScope(shield=True), trio.move_on_after(_CLOSE_TIMEOUT_S):
            await session.cells.end()
        for store in session.spilled:
            store.discard()
        session.network.close()
        session.log.close()
        session.output.close()
        self._by_id.pop(session.session_id, None)
        for key, value in list(self._defaults.items()):
            if value is session:
                del self._defaults[key]
        with trio.CancelScope(shield=True):
            await remove_session(session.places, session.identity)

    async def reap(self) -> list[Session]:
        """End idle cells; return sessions that have been idle for too long."""
        now = trio.current_time()
        expired: list[Session] = []
        for session in self:
            if session.closing:
                continue
            await session.cells.reap(self._config.daemon.cell_idle_s)
            limit = (
                self._config.sessions.default_idle_timeout_s
                if session.is_default
                else self._config.sessions.idle_timeout_s
            )
            if not session.active and now - session.last_used > limit:
                expired.append(session)
        return expired

    def cleanup_leftovers(self) -> list[str]:
        """Return names of session folders that no session of this daemon owns."""
        known = {s.session_id for s in self}
        try:
            names = os.listdir(self._folders.sessions_dir)
        except OSError:
            return []
        return [name for name in names if name not in known]
