"""Every request and notification of the wire, one dataclass each.

The wire is JSON-RPC 2.0, one object a line, over a Unix stream socket. `METHODS` maps
a method name to the dataclass of its parameters and that of its result;
`NOTIFICATIONS` maps the daemon's notifications. Field names are the JSON keys;
binary data travels as base64 in fields named ``*_b64``. The daemon validates with
msgspec against these classes; the thin client builds plain dicts from them, so this
file imports nothing heavy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from bashd.core.model import Mode, RunResult, TaskInfo, TaskRead
from bashd.protocol.wire import MAX_FRAME_BYTES, PROTOCOL_VERSION

__all__ = ["MAX_FRAME_BYTES", "METHODS", "NOTIFICATIONS", "PROTOCOL_VERSION"]


@dataclass(frozen=True, slots=True)
class Empty:
    """No parameters, or nothing to say."""


@dataclass(frozen=True, slots=True)
class InitializeParams:
    """First message of a connection; everything else is refused before it."""

    protocol: int
    client: str = ""


@dataclass(frozen=True, slots=True)
class ExecutorDefaults:
    """The daemon's executor settings, so that a client can resolve locally."""

    cwd: str
    timeout_ms: int | float
    max_timeout_ms: int | float
    max_output_bytes: int
    max_spill_bytes: int
    grace_ms: int | float
    sandbox_mode: Mode | None


@dataclass(frozen=True, slots=True)
class InitializeResult:
    """Who answers, and with which settings."""

    protocol: int
    version: str
    pid: int
    uid: int
    """The uid as which this caller is served."""
    executor: ExecutorDefaults
    capabilities: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SessionOpenParams:
    """Open a session, or find the caller's default one for *cwd*."""

    cwd: str
    mode: Mode | None = None
    """Session override of the mode; None leaves the policy's or daemon's default."""
    policy: str | None = None
    ambient: dict[str, str] = field(default_factory=dict[str, str])
    """The caller's environment, already scrubbed; the daemon scrubs again."""
    env_removed: tuple[str, ...] = ()
    """Names the client's scrub took."""
    default: bool = False
    """Share one session per uid and canonical cwd instead of opening a new one."""
    approval: str | None = None
    """``ask`` or ``never``; None takes the configured one."""


@dataclass(frozen=True, slots=True)
class SessionParams:
    """Names one of the caller's sessions."""

    session_id: str


@dataclass(frozen=True, slots=True)
class SessionAttachParams:
    """Come back to a session: the id is the only credential besides the uid."""

    session_id: str
    ambient: dict[str, str] | None = None
    env_removed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SessionModeParams:
    """Change a session's mode; in force from its next call on."""

    session_id: str
    mode: Mode | None
    """None removes the override."""


@dataclass(frozen=True, slots=True)
class SessionRecordParams:
    """Append what became of an approval that was asked for at the client's end."""

    session_id: str
    event: dict[str, str]
    """``type`` is ``approval/asked`` or ``approval/decided``."""


@dataclass(frozen=True, slots=True)
class CommandRule:
    """One ``[[command]]`` entry of a policy, for the tools to apply."""

    pattern: str
    """Regular expression, searched anywhere in the command."""
    action: str
    """``allow``, ``ask`` or ``deny``."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A session as it is now."""

    session_id: str
    cwd: str
    mode: Mode
    """Effective mode of a plain call: override, else policy, else daemon default."""
    mode_override: Mode | None
    policy: str | None
    created_at: float
    log_path: str | None
    default: bool
    running_tasks: int
    approval: str = "ask"
    writable: tuple[str, ...] = ()
    """Places a command may write to under *mode*."""
    command_rules: tuple[tuple[CommandRule, ...], ...] = ()
    """Lists of rules over the text of a command; in each the first match decides."""


@dataclass(frozen=True, slots=True)
class SessionList:
    """The caller's sessions, oldest first."""

    sessions: tuple[SessionInfo, ...]


@dataclass(frozen=True, slots=True)
class TerminalSize:
    """How large a terminal is, in characters."""

    rows: int
    columns: int


@dataclass(frozen=True, slots=True)
class ExecParams:
    """One command. The same for ``exec.run`` and ``exec.start``."""

    command: str
    session_id: str | None = None
    """None: the caller's default session for *cwd*."""
    cwd: str | None = None
    """Only without *session_id*: root and default workdir of the default session."""
    job: str | None = None
    """Only with *cwd*: a default session of this job's own, such as a CI job."""
    workdir: str | None = None
    timeout_ms: int | float | None = None
    env: dict[str, str | None] | None = None
    managed_env: dict[str, str] | None = None
    stdin_b64: str | None = None
    stdin_stream: bool = False
    """More stdin follows in ``exec.stdin`` notifications."""
    stdout_max_bytes: int | None = None
    owner: str | None = None
    mode: Mode | None = None
    """One-shot mode of this call (a grant or ``--mode``); None: the session's."""
    policy: str | None = None
    stream: bool = False
    """Send ``exec.output`` notifications while the command runs."""
    ambient: dict[str, str] | None = None
    """The caller's scrubbed environment for this call; None: the session's."""
    env_removed: tuple[str, ...] = ()
    deadline_ms: int | float | None = None
    """``exec.start`` only: optional deadline of the background task."""
    terminal: TerminalSize | None = None
    """``exec.run`` only, with *stdin_stream* and *stream*: give the command a terminal
    of its own. What it prints there comes as stdout, and without *timeout_ms* it has
    no timeout."""


@dataclass(frozen=True, slots=True)
class DetachParams:
    """One command that may go on as a background task."""

    call: ExecParams
    limit_ms: int | float
    """Milliseconds in the foreground."""


@dataclass(frozen=True, slots=True)
class DetachResult:
    """What became of it: exactly one of the two is set."""

    result: RunResult | None
    task: TaskInfo | None


@dataclass(frozen=True, slots=True)
class SessionApprovalParams:
    """Change whether a session's calls may ask a person; from its next call on."""

    session_id: str
    approval: str
    """``ask`` or ``never``."""


@dataclass(frozen=True, slots=True)
class ApprovalAskParams:
    """Ask a watching person about one call."""

    session_id: str
    call_id: str
    command: str
    """Exactly what will run if it is allowed."""
    reason: str
    mode: str | None = None
    """The wider mode asked for; None: a rule asked about a plain call."""
    workdir: str | None = None
    tool_name: str = "bash"


@dataclass(frozen=True, slots=True)
class ApprovalInfo:
    """One question as a watcher sees it.

    Everything in it is a caller's text: escape it before you show it.
    """

    approval_id: str
    session_id: str
    call_id: str
    tool_name: str
    command: str
    workdir: str
    mode: str | None
    reason: str
    asked_at: float
    """Seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class ApprovalOutcome:
    """``allowed-once``, ``rejected``, ``cancelled`` or ``unavailable``."""

    outcome: str


@dataclass(frozen=True, slots=True)
class ApprovalList:
    """Questions that wait, oldest first."""

    approvals: tuple[ApprovalInfo, ...]


@dataclass(frozen=True, slots=True)
class ApprovalDecideParams:
    """Answer one question, once."""

    approval_id: str
    outcome: str
    """``allowed-once`` or ``rejected``."""


@dataclass(frozen=True, slots=True)
class ApprovalAsked:
    """Notification after ``approval.watch``: somebody asks."""

    approval: ApprovalInfo


@dataclass(frozen=True, slots=True)
class ApprovalSettled:
    """Notification after ``approval.watch``: a question has its answer."""

    approval_id: str
    outcome: str


@dataclass(frozen=True, slots=True)
class ExecCancelParams:
    """Abort the ``exec.run`` that was sent with this request id."""

    request_id: int | str
    force: bool = False
    """True: KILL at once instead of TERM, grace, KILL."""


@dataclass(frozen=True, slots=True)
class ExecStdinParams:
    """More stdin for the ``exec.run`` that was sent with this request id.

    Sent as a request it is answered once the bytes are queued for the command, or
    dropped because it no longer reads; one open request at a time is the flow control.
    """

    request_id: int | str
    data_b64: str = ""
    eof: bool = False


@dataclass(frozen=True, slots=True)
class ExecResizeParams:
    """A new size for the terminal of the ``exec.run`` that was sent with this id."""

    request_id: int | str
    rows: int
    columns: int


@dataclass(frozen=True, slots=True)
class TaskParams:
    """Names one of the caller's tasks."""

    task_id: str


@dataclass(frozen=True, slots=True)
class TaskListParams:
    """Which of the caller's tasks to list."""

    session_id: str | None = None
    """None: those of all the caller's sessions."""
    all: bool = True
    """Finished tasks too."""


@dataclass(frozen=True, slots=True)
class TaskList:
    """Tasks in the order they were started."""

    tasks: tuple[TaskInfo, ...]


@dataclass(frozen=True, slots=True)
class TaskNoticesParams:
    """Take the settled tasks of an owner that nobody has taken yet."""

    session_id: str
    owner: str


@dataclass(frozen=True, slots=True)
class TaskMaybe:
    """The task, or null for an unknown id."""

    task: TaskInfo | None


@dataclass(frozen=True, slots=True)
class TaskReadMaybe:
    """What was read, or null for an unknown id."""

    read: TaskRead | None


@dataclass(frozen=True, slots=True)
class OwnerResult:
    """The owner token verbatim; null for unowned and unknown tasks."""

    owner: str | None


@dataclass(frozen=True, slots=True)
class TaskLogsParams:
    """Non-consuming read of one stream by byte offset."""

    task_id: str
    stream: str = "stdout"
    offset: int = 0
    limit_bytes: int = 1 << 20
    wait: bool = False
    """Answer only when there is something past *offset* or the task has settled."""


@dataclass(frozen=True, slots=True)
class TaskLogsResult:
    """A slice of one stream; empty at its end."""

    data_b64: str
    offset: int
    """Where *data* starts; larger than asked for when older bytes are gone."""
    next_offset: int
    total: int
    settled: bool


@dataclass(frozen=True, slots=True)
class TaskKillResult:
    """Whether the kill found the task running."""

    killed: bool


@dataclass(frozen=True, slots=True)
class ExecOutput:
    """Notification: live output of a streaming ``exec.run``, always before its answer."""

    request_id: int | str
    stream: str
    """``stdout`` or ``stderr``."""
    data_b64: str
    offset: int = 0
    """Where the data starts in the whole stream, in bytes. It skips what was dropped
    because the client read too slowly; ``spill_path`` of the result has it all."""


@dataclass(frozen=True, slots=True)
class TaskDone:
    """Notification after ``task.subscribe``: a task of this session settled."""

    task: TaskInfo


@dataclass(frozen=True, slots=True)
class PolicyParams:
    """Names a policy, as seen from *cwd*."""

    name: str
    cwd: str | None = None


@dataclass(frozen=True, slots=True)
class ExplainParams:
    """Names one of the caller's commands."""

    id: str | None = None
    """A run id or a task id; None: the command that settled last."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """One refusal, the rule behind it, and what would allow it."""

    path: str | None
    operation: str | None
    evidence: str
    process: str | None
    rule: str
    """What refused it: a line of a policy, or in words."""
    sources: tuple[str, ...] = ()
    """Files that the line comes from; ``built in`` where no file states it."""
    allow: str | None = None
    """Line of a policy that would allow it, as TOML; null where none would."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class ExplainResult:
    """What is known of one command, and what a policy could say about it."""

    run_id: str
    task_id: str | None
    session_id: str | None
    command: str
    workdir: str
    running: bool
    """A task that has not settled; then this is what is known so far."""
    exit_code: int | None
    signal: str | None
    mode: Mode
    policy: str
    runner: str | None
    verdict: str
    refusals: tuple[Explanation, ...] = ()
    hints: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    gaps: tuple[str, ...] = ()
    """What the runner could not enforce."""
    env_removed: tuple[str, ...] = ()
    records: str = ""
    """Why the kernel's own records of refusals are not read; empty where they are."""
    policy_toml: str | None = None
    """Text of a policy that would allow all of it, for review; null for none."""


@dataclass(frozen=True, slots=True)
class StatusResult:
    """How the daemon is."""

    version: str
    pid: int
    uptime_s: float
    sessions: int
    cells: int
    tasks: int
    runner: str | None
    records: str = ""
    """Why the kernel's records of refusals are not read; empty where they are."""


METHODS: Final[dict[str, tuple[type, type]]] = {
    "initialize": (InitializeParams, InitializeResult),
    "daemon.status": (Empty, StatusResult),
    "session.open": (SessionOpenParams, SessionInfo),
    "session.attach": (SessionAttachParams, SessionInfo),
    "session.get": (SessionParams, SessionInfo),
    "session.list": (Empty, SessionList),
    "session.set_mode": (SessionModeParams, SessionInfo),
    "session.set_approval": (SessionApprovalParams, SessionInfo),
    "session.record": (SessionRecordParams, Empty),
    "session.close": (SessionParams, Empty),
    "exec.run": (ExecParams, RunResult),
    "exec.start": (ExecParams, TaskInfo),
    "exec.run_or_detach": (DetachParams, DetachResult),
    "run.explain": (ExplainParams, ExplainResult),
    "exec.cancel": (ExecCancelParams, Empty),
    "exec.stdin": (ExecStdinParams, Empty),
    "exec.resize": (ExecResizeParams, Empty),
    "task.get": (TaskParams, TaskMaybe),
    "task.list": (TaskListParams, TaskList),
    "task.owner": (TaskParams, OwnerResult),
    "task.read": (TaskParams, TaskReadMaybe),
    "task.logs": (TaskLogsParams, TaskLogsResult),
    "task.kill": (TaskParams, TaskKillResult),
    "task.wait": (TaskParams, TaskInfo),
    "task.subscribe": (SessionParams, Empty),
    "task.take_notices": (TaskNoticesParams, TaskList),
    "approval.ask": (ApprovalAskParams, ApprovalOutcome),
    "approval.list": (Empty, ApprovalList),
    "approval.decide": (ApprovalDecideParams, Empty),
    "approval.watch": (Empty, ApprovalList),
}
"""Method name to (parameters, result)."""

NOTIFICATIONS: Final[dict[str, type]] = {
    "exec.output": ExecOutput,
    "task.done": TaskDone,
    "approval.asked": ApprovalAsked,
    "approval.settled": ApprovalSettled,
}
"""Daemon to client, without an id."""
