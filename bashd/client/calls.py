"""Every call of the executor seam as a value: method, parameters, how to read the answer.

The blocking and the async client send these same values, so neither has protocol
knowledge of its own. Nothing here does I/O.
"""

from __future__ import annotations

from binascii import b2a_base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from bashd.client.ambient import ambient_of
from bashd.client.folder import FAR_FOLDER, absolute
from bashd.core.errors import ConnectError, InvalidParamsError
from bashd.core.model import ExecSpec, Mode, RunResult, TaskInfo, TaskRead
from bashd.protocol.codec import from_wire, to_wire
from bashd.protocol.messages import (
    ApprovalAskParams,
    ApprovalDecideParams,
    ApprovalInfo,
    ApprovalList,
    ApprovalOutcome,
    DetachParams,
    DetachResult,
    Empty,
    ExecParams,
    OwnerResult,
    SessionApprovalParams,
    SessionAttachParams,
    SessionInfo,
    SessionList,
    SessionModeParams,
    SessionOpenParams,
    SessionParams,
    SessionRecordParams,
    StatusResult,
    TaskKillResult,
    TaskList,
    TaskListParams,
    TaskLogsParams,
    TaskLogsResult,
    TaskMaybe,
    TaskNoticesParams,
    TaskParams,
    TaskReadMaybe,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request and what its answer becomes."""

    method: str
    params: dict[str, Any]
    read: Callable[[object], T]
    """Turns the answer's ``result`` into the value that the caller gets."""


def _call(method: str, params: object, answer: type[T]) -> Call[T]:
    return Call(method, to_wire(params), lambda result: from_wire(answer, result))


def _nothing(_: object) -> None:
    return None


def status() -> Call[StatusResult]:
    """Ask how the daemon is."""
    return _call("daemon.status", Empty(), StatusResult)


def open_session(
    cwd: str | None,
    *,
    environ: Mapping[str, str],
    mode: Mode | str | None = None,
    policy: str | None = None,
    far: bool = False,
) -> Call[SessionInfo]:
    """Open a session of its own for *cwd*, with *environ* as its environment.

    With *far* the folder is another machine's, and so is an empty environment.
    """
    ambient, removed = ambient_of(environ)
    params = SessionOpenParams(
        cwd=(cwd or FAR_FOLDER) if far else absolute(cwd),
        mode=as_mode(mode),
        policy=policy,
        ambient=ambient,
        env_removed=removed,
    )
    return _call("session.open", params, SessionInfo)


def attach_session(session_id: str, *, environ: Mapping[str, str]) -> Call[SessionInfo]:
    """Come back to a session, with *environ* as its environment from now on."""
    ambient, removed = ambient_of(environ)
    params = SessionAttachParams(session_id, ambient, removed)
    return _call("session.attach", params, SessionInfo)


def get_session(session_id: str) -> Call[SessionInfo]:
    """Ask for a session as it is now."""
    return _call("session.get", SessionParams(session_id), SessionInfo)


def list_sessions() -> Call[tuple[SessionInfo, ...]]:
    """Ask for the caller's sessions."""
    return Call(
        "session.list", {}, lambda result: from_wire(SessionList, result).sessions
    )


def set_session_mode(session_id: str, mode: Mode | str | None) -> Call[SessionInfo]:
    """Override a session's mode from its next call on; None removes the override."""
    params = SessionModeParams(session_id, as_mode(mode))
    return _call("session.set_mode", params, SessionInfo)


def set_approval(session_id: str, approval: str) -> Call[SessionInfo]:
    """Say whether a session's calls may ask a person: ``ask`` or ``never``."""
    params = SessionApprovalParams(session_id, approval)
    return _call("session.set_approval", params, SessionInfo)


def record_event(session_id: str, event: Mapping[str, str]) -> Call[None]:
    """Append to a session's log what became of an approval asked for here."""
    params = SessionRecordParams(session_id, dict(event))
    return Call("session.record", to_wire(params), _nothing)


def close_session(session_id: str) -> Call[None]:
    """End a session, its tasks and everything it keeps."""
    return Call("session.close", to_wire(SessionParams(session_id)), _nothing)


def subscribe(session_id: str) -> Call[None]:
    """Ask to be told when tasks of a session settle."""
    return Call("task.subscribe", to_wire(SessionParams(session_id)), _nothing)


def run(spec: ExecSpec, session_id: str, *, stream: bool) -> Call[RunResult]:
    """Run in the foreground; *stream* asks for live output."""
    return _call("exec.run", _exec_params(spec, session_id, stream=stream), RunResult)


def run_or_detach(
    spec: ExecSpec, session_id: str, *, limit_ms: float, stream: bool
) -> Call[RunResult | TaskInfo]:
    """Run in the foreground for *limit_ms*, then go on in the background."""
    params = DetachParams(_exec_params(spec, session_id, stream=stream), limit_ms)

    def read(result: object) -> RunResult | TaskInfo:
        outcome = from_wire(DetachResult, result)
        if outcome.result is not None:
            return outcome.result
        if outcome.task is not None:
            return outcome.task
        raise ConnectError("the daemon sent neither a result nor a task")

    return Call("exec.run_or_detach", to_wire(params), read)


def ask_approval(question: ApprovalAskParams) -> Call[str]:
    """Have the caller's watchers asked about one command."""
    return Call(
        "approval.ask",
        to_wire(question),
        lambda result: from_wire(ApprovalOutcome, result).outcome,
    )


def list_approvals() -> Call[tuple[ApprovalInfo, ...]]:
    """Ask for the questions that wait for an answer."""
    return Call("approval.list", {}, _questions)


def watch_approvals() -> Call[tuple[ApprovalInfo, ...]]:
    """Become a watcher; returns the questions that wait already."""
    return Call("approval.watch", {}, _questions)


def decide_approval(approval_id: str, outcome: str) -> Call[None]:
    """Answer one question: ``allowed-once`` or ``rejected``."""
    params = ApprovalDecideParams(approval_id, outcome)
    return Call("approval.decide", to_wire(params), _nothing)


def _questions(result: object) -> tuple[ApprovalInfo, ...]:
    return from_wire(ApprovalList, result).approvals


def start(
    spec: ExecSpec, session_id: str, *, deadline_ms: float | None
) -> Call[TaskInfo]:
    """Start in the background."""
    params = _exec_params(spec, session_id, deadline_ms=deadline_ms)
    return _call("exec.start", params, TaskInfo)


def _exec_params(
    spec: ExecSpec,
    session_id: str,
    *,
    stream: bool = False,
    deadline_ms: float | None = None,
) -> ExecParams:
    stdin = spec.stdin
    return ExecParams(
        command=spec.command,
        session_id=session_id,
        workdir=spec.workdir,
        timeout_ms=spec.timeout_ms,
        env=spec.env,
        managed_env=spec.managed_env,
        stdin_b64=None if stdin is None else b2a_base64(stdin, newline=False).decode(),
        stdout_max_bytes=spec.stdout_max_bytes,
        owner=spec.owner,
        mode=spec.sandbox_mode,
        policy=spec.policy,
        stream=stream,
        deadline_ms=deadline_ms,
    )


def get_task(task_id: str) -> Call[TaskInfo | None]:
    """Ask for a task."""
    params = to_wire(TaskParams(task_id))
    return Call("task.get", params, lambda result: from_wire(TaskMaybe, result).task)


def list_tasks(session_id: str | None) -> Call[list[TaskInfo]]:
    """Ask for the tasks of a session, or of all the caller's, in order of start."""
    params = to_wire(TaskListParams(session_id))
    return Call(
        "task.list", params, lambda result: list(from_wire(TaskList, result).tasks)
    )


def owner_of(task_id: str) -> Call[str | None]:
    """Ask for a task's owner token."""
    params = to_wire(TaskParams(task_id))
    return Call(
        "task.owner", params, lambda result: from_wire(OwnerResult, result).owner
    )


def take_notices(session_id: str, owner: str) -> Call[list[TaskInfo]]:
    """Take the finished tasks of *owner* that nobody has taken yet."""
    params = to_wire(TaskNoticesParams(session_id, owner))
    return Call(
        "task.take_notices",
        params,
        lambda result: list(from_wire(TaskList, result).tasks),
    )


def read_output(task_id: str) -> Call[TaskRead | None]:
    """Read what came since the last read."""
    params = to_wire(TaskParams(task_id))
    return Call(
        "task.read", params, lambda result: from_wire(TaskReadMaybe, result).read
    )


def read_log(params: TaskLogsParams) -> Call[TaskLogsResult]:
    """Read a slice of a stream without moving the task's cursor."""
    return _call("task.logs", params, TaskLogsResult)


def wait_task(task_id: str) -> Call[TaskInfo]:
    """Wait until a task has settled."""
    return _call("task.wait", TaskParams(task_id), TaskInfo)


def kill(task_id: str) -> Call[bool]:
    """End a task."""
    params = to_wire(TaskParams(task_id))
    return Call(
        "task.kill", params, lambda result: from_wire(TaskKillResult, result).killed
    )


def as_mode(mode: Mode | str | None) -> Mode | None:
    """Return *mode* as a `Mode`.

    Raises:
        InvalidParamsError: There is no mode of that name.
    """
    if mode is None:
        return None
    try:
        return Mode(mode)
    except ValueError:
        names = ", ".join(Mode)
        raise InvalidParamsError(f"unknown mode {mode!r}; modes are {names}") from None
