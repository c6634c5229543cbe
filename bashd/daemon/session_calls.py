"""Handlers of ``session.*``."""

from __future__ import annotations

from collections.abc import Callable

from bashd.core.errors import BashdError, InvalidParamsError, NotAllowedError
from bashd.core.model import Mode
from bashd.core.policy import Policy
from bashd.daemon.background import Background
from bashd.daemon.call import Call, Handler
from bashd.daemon.cells import LANDLOCK
from bashd.daemon.execution import Execution
from bashd.daemon.runners import Runners
from bashd.daemon.session import Session
from bashd.daemon.sessions import Sessions
from bashd.daemon.task import TaskTable
from bashd.protocol.messages import (
    CommandRule,
    Empty,
    SessionApprovalParams,
    SessionAttachParams,
    SessionInfo,
    SessionList,
    SessionModeParams,
    SessionOpenParams,
    SessionParams,
    SessionRecordParams,
)

_RECORDED = frozenset({"approval/asked", "approval/decided"})
"""Events a client may write; all others are the daemon's own observations."""


class SessionCalls:
    """See the module docstring."""

    def __init__(
        self,
        sessions: Sessions,
        tasks: TaskTable,
        *,
        execution: Execution,
        runners: Runners,
        background: Background,
        forget: Callable[[Session], None],
    ) -> None:
        self._sessions = sessions
        self._tasks = tasks
        self._execution = execution
        self._runners = runners
        self._background = background
        self._forget = forget

    def handlers(self) -> dict[str, Handler]:
        """Return method to handler."""
        return {
            "session.open": self._open,
            "session.attach": self._attach,
            "session.get": self._get,
            "session.list": self._list,
            "session.set_mode": self._set_mode,
            "session.set_approval": self._set_approval,
            "session.record": self._record,
            "session.close": self._close,
        }

    async def _open(self, call: Call, params: SessionOpenParams) -> SessionInfo:
        identity = call.caller.identity
        if params.default:
            session = await self._sessions.default(identity, params.cwd)
        else:
            session = await self._sessions.open(
                identity,
                params.cwd,
                mode=params.mode,
                policy=params.policy,
                approval=params.approval,
            )
        session.hold(call.client)
        session.ambient = dict(params.ambient)
        session.env_removed = params.env_removed
        self._sessions.save(session)
        try:
            return await self._info(session)
        except BashdError:
            # A policy that does not load, or a mode beyond the ceiling: no session.
            if not params.default:
                await self.close_session(session)
            raise

    async def _attach(self, call: Call, params: SessionAttachParams) -> SessionInfo:
        session = self._sessions.find(call.caller.uid, params.session_id)
        if params.ambient is not None:
            session.ambient = dict(params.ambient)
            session.env_removed = params.env_removed
        session.touch()
        session.hold(call.client)
        return await self._info(session)

    async def _get(self, call: Call, params: SessionParams) -> SessionInfo:
        return await self._info(self._sessions.find(call.caller.uid, params.session_id))

    async def _list(self, call: Call, _: Empty) -> SessionList:
        infos = [
            await self._info(session)
            for session in self._sessions.of_user(call.caller.uid)
        ]
        return SessionList(tuple(infos))

    async def _set_mode(self, call: Call, params: SessionModeParams) -> SessionInfo:
        session = self._sessions.find(call.caller.uid, params.session_id)
        before, session.mode_override = session.mode_override, params.mode
        try:
            info = await self._info(session)
        except NotAllowedError:
            session.mode_override = before
            raise
        self._sessions.save(session)
        mode = None if params.mode is None else str(params.mode)
        session.log.append({"type": "bash/sandbox-mode", "mode": mode})
        return info

    async def _set_approval(
        self, call: Call, params: SessionApprovalParams
    ) -> SessionInfo:
        session = self._sessions.find(call.caller.uid, params.session_id)
        if params.approval not in ("ask", "never"):
            raise InvalidParamsError('approval policy must be one of "ask" or "never"')
        session.approval = params.approval
        self._sessions.save(session)
        session.log.append({"type": "approval/policy", "policy": params.approval})
        return await self._info(session)

    async def _record(self, call: Call, params: SessionRecordParams) -> Empty:
        session = self._sessions.find(call.caller.uid, params.session_id)
        kind = params.event.get("type")
        if kind not in _RECORDED:
            raise InvalidParamsError(
                f"a client may record {' and '.join(sorted(_RECORDED))}, not {kind!r}"
            )
        session.log.append(dict(params.event))
        return Empty()

    async def _close(self, call: Call, params: SessionParams) -> Empty:
        await self.close_session(
            self._sessions.find(call.caller.uid, params.session_id)
        )
        return Empty()

    async def close_session(self, session: Session) -> None:
        """End a session's tasks and cells and remove everything of it."""
        session.closing = True
        await self._background.stop_tasks(session)
        self._tasks.forget(self._tasks.of_session(session))
        self._forget(session)
        await self._sessions.close(session)

    async def _info(self, session: Session) -> SessionInfo:
        policy = await self._execution.default_policy(session)
        return SessionInfo(
            session_id=session.session_id,
            cwd=session.cwd,
            mode=policy.mode,
            mode_override=session.mode_override,
            policy=session.policy,
            created_at=round(session.created_at, 3),
            log_path=session.log.path,
            default=session.is_default,
            running_tasks=sum(
                not task.settled for task in self._tasks.of_session(session)
            ),
            approval=session.approval,
            writable=self._writable(session, policy),
            command_rules=tuple(
                tuple(CommandRule(r.pattern, r.action, r.reason) for r in rules)
                for rules in policy.commands
            ),
        )

    def _writable(self, session: Session, policy: Policy) -> tuple[str, ...]:
        if not policy.mode.confines:
            return ("/",)
        places: list[str] = []
        if policy.mode is Mode.WORKSPACE_WRITE:
            places += [session.cwd, *policy.writable]
        if policy.scratch:
            on_host = self._runners.chosen == LANDLOCK
            places.append(session.places.tmp_dir if on_host else "/tmp")  # noqa: S108
        return tuple(places)
