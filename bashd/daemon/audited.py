"""Which calls, besides those that run commands, have a line in the audit log.

Everything that changes how far later commands reach or who may say so: sessions, their
modes, questions and answers, kills; and every call that was refused. Commands have lines
of their own (`bashd.daemon.audit_log`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from bashd.core.errors import Refused
from bashd.protocol.messages import (
    ApprovalAskParams,
    ApprovalDecideParams,
    ApprovalOutcome,
    SessionApprovalParams,
    SessionInfo,
    SessionModeParams,
    SessionParams,
    SessionRecordParams,
    TaskKillResult,
    TaskParams,
)

if TYPE_CHECKING:
    from bashd.daemon.audit_log import AuditLog
    from bashd.daemon.call import Call, Handler
    from bashd.daemon.peer import Caller

_LONGEST: Final = 4096
"""Characters kept of what a client says."""

Fields = dict[str, Any]


def _opened(_: object, info: SessionInfo) -> Fields:
    return {
        "session": info.session_id,
        "cwd": info.cwd,
        "mode": str(info.mode),
        "policy": info.policy,
    }


def _mode(params: SessionModeParams, info: SessionInfo) -> Fields:
    asked = None if params.mode is None else str(params.mode)
    return {"session": params.session_id, "override": asked, "mode": str(info.mode)}


def _may_ask(params: SessionApprovalParams, _: object) -> Fields:
    return {"session": params.session_id, "approval": params.approval}


def _recorded(params: SessionRecordParams, _: object) -> Fields:
    said = {key: value[:_LONGEST] for key, value in params.event.items()}
    return {"session": params.session_id, "said": said}


def _closed(params: SessionParams, _: object) -> Fields:
    return {"session": params.session_id}


def _asked(params: ApprovalAskParams, answer: ApprovalOutcome) -> Fields:
    return {
        "session": params.session_id,
        "call_id": params.call_id,
        "command": params.command[:_LONGEST],
        "mode": params.mode,
        "reason": params.reason[:_LONGEST],
        "outcome": answer.outcome,
    }


def _decided(params: ApprovalDecideParams, _: object) -> Fields:
    return {"approval_id": params.approval_id, "outcome": params.outcome}


def _killed(params: TaskParams, result: TaskKillResult) -> Fields:
    return {"task_id": params.task_id, "killed": result.killed}


_EVENTS: Final[Mapping[str, Callable[[Any, Any], Fields]]] = {
    "session.open": _opened,
    "session.set_mode": _mode,
    "session.set_approval": _may_ask,
    "session.record": _recorded,
    "session.close": _closed,
    "approval.ask": _asked,
    "approval.decide": _decided,
    "task.kill": _killed,
}
"""Method to the fields of its line, from parameters and result."""


def audited(handlers: Mapping[str, Handler], log: AuditLog) -> dict[str, Handler]:
    """Return handlers that also write to *log* what is worth a line."""
    if not log.is_on:
        return dict(handlers)
    return {
        method: partial(_serve, log, handler) for method, handler in handlers.items()
    }


async def _serve(
    log: AuditLog,
    handler: Handler,
    call: Call,
    params: Any,  # noqa: ANN401 - the codec made it for this method
) -> object:
    try:
        result: Any = await handler(call, params)
    except Refused as error:
        refused(log, call.caller, call.method, error)
        raise
    fields_of = _EVENTS.get(call.method)
    if fields_of is not None:
        log.note(call.method, **_who(call.caller), **fields_of(params, result))
    return result


def refused(log: AuditLog, caller: Caller, method: str, error: Refused) -> None:
    """Log a call that was refused."""
    log.note(
        "refused",
        **_who(caller),
        confined=caller.confined is not None,
        method=method,
        code=error.code,
        reason=error.message[:_LONGEST],
    )


def _who(caller: Caller) -> Fields:
    identity = caller.identity
    return {"uid": identity.uid, "user": identity.name, "asked_by": caller.pid}
