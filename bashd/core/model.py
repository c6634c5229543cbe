"""The values all floors share: modes, requests, specs, results, tasks, sessions.

Frozen dataclasses with JSON-ready fields: ``dataclasses.asdict`` of a result is the
object that ``bashd run --json`` prints. Units are in the names. Nothing here may
import anything that costs start-up time: the command-line client loads this file on
every call.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final


class Mode(StrEnum):
    """How far a command may reach, from narrow to wide. Modes speak of files."""

    READ_ONLY = "read-only"
    WORKSPACE_WRITE = "workspace-write"
    DANGER_FULL_ACCESS = "danger-full-access"

    @property
    def rank(self) -> int:
        """0 for the narrowest mode; a larger number is wider."""
        return _RANK[self]

    def is_wider_than(self, other: Mode) -> bool:
        """Say whether this mode is strictly wider than *other*."""
        return self.rank > other.rank

    @property
    def confines(self) -> bool:
        """Whether this mode puts the command behind any wall at all."""
        return self is not Mode.DANGER_FULL_ACCESS


_RANK: Final = {
    Mode.READ_ONLY: 0,
    Mode.WORKSPACE_WRITE: 1,
    Mode.DANGER_FULL_ACCESS: 2,
}


class Verdict(StrEnum):
    """What is known about refusals during a run.

    ``denied``: the kernel or a policy said so. ``suspected``: stderr said so.
    ``unknown``: the kernel's records were lost.
    """

    NONE = "none"
    DENIED = "denied"
    SUSPECTED = "suspected"
    UNKNOWN = "unknown"


class TaskStatus(StrEnum):
    """State of a background task; settles exactly once."""

    RUNNING = "running"
    COMPLETED = "completed"
    KILLED = "killed"


@dataclass(frozen=True, slots=True)
class StreamOutput:
    """What was kept of one output stream."""

    text: str
    """The tail, decoded as UTF-8 with replacement; the whole stream if it fitted."""
    truncated: bool = False
    spill_path: str | None = None
    """File with the complete stream; only set when it is whole and readable."""
    bytes: int = 0
    """Length of the whole stream, kept or not."""


@dataclass(frozen=True, slots=True)
class Denial:
    """One refusal: what was asked for, of what, and how it is known."""

    path: str | None
    """Ends in a slash for something in that folder whose name is not known."""
    operation: str | None
    """``write``, ``read``, ``execute``, ``connect``, ``signal``… or None."""
    evidence: str
    """``stderr``, ``kernel`` or ``policy``."""
    process: str | None = None
    """Name of the program that was refused, where the kernel's record tells."""


@dataclass(frozen=True, slots=True)
class SandboxFacts:
    """How a command was confined and whether that refused it anything."""

    mode: Mode
    denied: bool = False
    """True for the verdicts ``denied`` and ``suspected``."""
    verdict: Verdict = Verdict.NONE
    enforcement: str | None = None
    """``full`` or ``partial``; None where nothing was confined."""
    runner: str | None = None
    """``bwrap`` or ``landlock``; None where nothing was confined."""
    denials: tuple[Denial, ...] = ()
    runner_failed: bool = False
    """The cell itself broke; outranks a denial, never together with one."""
    hints: tuple[str, ...] = ()
    """What a reader of the failure should know of the sandbox, one line each: that the
    network is off, which credentials were taken out of the environment."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a command cost."""

    wall_ms: int = 0
    cpu_ms: int = 0
    max_rss_bytes: int = 0
    """Most memory it had at once; without the memory controller, its largest process."""
    oom_killed: bool = False
    """The kernel ended a process of it because its memory limit was reached. Only
    known where a cgroup keeps that limit."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """A settled foreground command. Exactly the keys of ``bashd run --json``."""

    exit_code: int | None
    """None when a signal ended it (then *signal* is set)."""
    signal: str | None
    """Name with its prefix, such as ``SIGTERM``."""
    timed_out: bool
    aborted: bool
    timeout_ms: int | float
    """The effective timeout: defaulted, then capped."""
    stdout: StreamOutput
    stderr: StreamOutput
    sandbox: SandboxFacts | None
    env_removed: tuple[str, ...] = ()
    """Names (never values) that the scrub took from the caller's environment."""
    run_id: str = ""
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True)
class ExecRequest:
    """What a caller asks for; None means "not given"."""

    command: str
    workdir: str | None = None
    timeout_ms: int | float | None = None
    stdin: bytes | None = None
    env: dict[str, str | None] | None = None
    """Explicit entries, never scrubbed; None as a value removes the variable."""
    managed_env: dict[str, str] | None = None
    stdout_max_bytes: int | None = None
    owner: str | None = None
    """Opaque owner token; an empty string is a real owner."""
    sandbox_mode: Mode | None = None
    policy: str | None = None


@dataclass(frozen=True, slots=True)
class ExecSpec:
    """A request with every default applied: run and start read nothing else."""

    command: str
    workdir: str
    timeout_ms: int | float
    stdout_max_bytes: int
    owner: str | None
    sandbox_mode: Mode | None
    policy: str | None = None
    stdin: bytes | None = None
    env: dict[str, str | None] | None = None
    managed_env: dict[str, str] | None = None

    def to_dict(self) -> dict[str, object]:
        """Return the fields as a dict in which stdin and env are absent, not None."""
        out: dict[str, object] = {
            "command": self.command,
            "workdir": self.workdir,
            "timeout_ms": self.timeout_ms,
            "stdout_max_bytes": self.stdout_max_bytes,
            "owner": self.owner,
            "sandbox_mode": None
            if self.sandbox_mode is None
            else str(self.sandbox_mode),
        }
        for key in ("policy", "stdin", "env", "managed_env"):
            value = getattr(self, key)
            if value is not None:
                out[key] = value
        return out


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """A background task as it is listed."""

    task_id: str
    session_id: str | None
    command: str
    status: TaskStatus
    exit_code: int | None
    signal: str | None
    started_at: float
    """Seconds since the epoch."""
    age_s: float
    """Seconds since the start; stops growing when the task settles."""
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    cpu_ms: int = 0
    rss_bytes: int = 0
    """Of all its processes now; 0 once it has settled."""
    ports: tuple[int, ...] = ()
    """TCP ports it listens on now."""
    owner: str | None = None
    workdir: str = ""
    run_id: str = ""
    sandbox: SandboxFacts | None = None
    """Stamped before any listener or waiter hears that the task settled; None while
    it runs and for danger-full-access."""
    max_rss_bytes: int = 0
    """As `Usage.max_rss_bytes`."""
    oom_killed: bool = False
    """As `Usage.oom_killed`."""


@dataclass(frozen=True, slots=True)
class TaskRead:
    """One consuming read of a task's output."""

    delta: str
    """stdout since the last read, then ``[stderr]`` and stderr since the last read."""
    lossy: bool
    """Some bytes since the last read are no longer in the retained window."""
    spill_paths: tuple[str, ...]
    """Complete files, stdout's before stderr's; only those that exist."""
    task: TaskInfo
