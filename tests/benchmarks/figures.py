"""What a run finds out: figures, and what could not be found out."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.benchmarks.stats import Summary

READ_ONLY = "read-only"
WORKSPACE_WRITE = "workspace-write"

OURS = "bashd"
"""Name of bashd on its best runner, in every work."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Where something was measured."""

    account: str
    """``root`` or ``user``."""
    mode: str

    def __str__(self) -> str:
        return f"{self.account}, {self.mode}"


@dataclass(frozen=True, slots=True)
class Figure:
    """One contender at one work."""

    work: str
    """Key in `WORKS`."""
    setting: Setting
    contender: str
    summary: Summary
    at: float | None = None
    """How much there was of what the work counts; None where it counts nothing."""


@dataclass(frozen=True, slots=True)
class Absence:
    """A contender, or a whole stage, that has no figure, and why."""

    what: str
    reason: str
    broken: bool = False
    """It should have worked here; a peer that cannot run is no fault of the run."""


@dataclass(slots=True)
class Findings:
    """Everything a run has found out so far."""

    figures: list[Figure] = field(default_factory=list[Figure])
    absences: list[Absence] = field(default_factory=list[Absence])

    def settings(self, work: str) -> list[Setting]:
        """Return where a work was measured, in order."""
        found = (figure.setting for figure in self.figures if figure.work == work)
        return list(dict.fromkeys(found))

    def at(self, work: str, setting: Setting, contender: str) -> list[Figure]:
        """Return the figures of one contender, in the order in which they grew."""
        return [
            figure
            for figure in self.figures
            if (figure.work, figure.setting, figure.contender)
            == (work, setting, contender)
        ]

    def one(self, work: str, setting: Setting, contender: str) -> Summary | None:
        """Return the one summary of a contender at a work that does not grow."""
        found = self.at(work, setting, contender)
        return found[0].summary if found else None


@dataclass(frozen=True, slots=True)
class Work:
    """Something that is measured."""

    title: str
    """Short; with the pacing, which stands beside every figure."""
    unit: str
    against: tuple[str, ...] = ()
    """Contenders to which ratios are shown."""
    counts: str = ""
    """What `Figure.at` counts."""
    about: str = ""
    """More, where the title does not say everything."""
    grows: bool = False
    """Whether its figures make a curve."""


WORKS: dict[str, Work] = {
    "warm": Work(
        "warm `true`, back to back",
        "ms",
        ("bwrap", "bash"),
        about="A client's call until it has the result, in a session that is open.",
    ),
    "paced": Work(
        "warm `true`, 10 ms between commands",
        "ms",
        ("bwrap", "bash"),
        about="The same at a slower pace: processors and caches have cooled down.",
    ),
    "walls": Work(
        "what the walls add to a warm `true`, back to back",
        "ms",
        about="A confined command less one in danger-full-access mode, of the same"
        " daemon, in pairs; audit records are read where the host writes them.",
    ),
    "cold": Work(
        "first command of a session, one session after the other",
        "ms",
        ("bwrap",),
        about="Connect, open a session, make its cell, run `true`.",
    ),
    "cli": Work(
        "`bashd run true`, back to back",
        "ms",
        ("bare python3", "codex"),
        about="Whole processes, with the daemon up; bare python3 imports argparse,"
        " json, os and socket.",
    ),
    "mcp": Work(
        "`true` as an MCP tool call over stdio, back to back", "ms", ("bwrap",)
    ),
    **{
        f"rate-{clients}": Work(
            f"commands per second, {clients} client{'s' * (clients > 1)}"
            f"{' in 16 processes' * (clients > 16)}, each back to back",
            "/s",
            ("bwrap",),
        )
        for clients in (1, 2, 4, 16, 64)
    },
    "output": Work(
        "output of one command to its file, without pause",
        "MB/s",
        ("cat > file",),
        counts="MB",
    ),
    "output-memory": Work("growth of the daemon's peak memory meanwhile", "MB"),
    "flood": Work(
        "`true` in another session while one floods, back to back",
        "ms",
        ("bashd, quiet",),
    ),
    "idle-memory": Work("daemon at rest, PSS", "MB"),
    "idle-wakeups": Work("daemon at rest, switches of all its threads", "/min"),
    "idle-cpu": Work("daemon at rest, processor time", "ms/min"),
    "cell-memory": Work("one cell with its spares, PSS", "MB"),
    "tasks-memory": Work(
        "daemon with many background tasks alive, PSS", "MB", counts="tasks"
    ),
    "tasks-cpu": Work(
        "daemon with many background tasks alive and idle, processor",
        "%",
        counts="tasks",
    ),
    "tasks-readable": Work(
        "share of live tasks whose output can be read", "%", counts="tasks"
    ),
    "many-memory": Work(
        "growth of the daemon over many commands, PSS", "MB", counts="commands"
    ),
    "many-descriptors": Work(
        "growth of the daemon over many commands", "open files", counts="commands"
    ),
    **{
        f"grow-{key}": Work(
            f"warm `true`, back to back, by number of {counts}",
            "ms",
            counts=counts,
            about=about,
            grows=True,
        )
        for key, counts, about in (
            ("sessions", "open sessions", "Each has a cell of its own."),
            ("tasks", "live tasks", "They sleep in the background of another session."),
            ("files", "files in the workspace", "500 in a folder."),
            ("paths", "masked paths", "All of them exist."),
            ("rules", "command rules", "None of them matches."),
        )
    },
}
"""In the order in which they are reported."""
