"""What is remembered of a session's latest commands, for ``bashd explain``.

A bounded list in memory, and on disk the commands that there is something to explain
about: those are few, so that keeping them costs the others nothing. What the kernel
still says of processes that outlive their command is seen through its trail.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from bashd.core.errors import InternalError
from bashd.core.model import SandboxFacts, Verdict
from bashd.protocol.codec import from_wire, to_wire

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bashd.daemon.evidence import Trail

MOST: Final = 200
"""Commands remembered of one session."""
_LONGEST: Final = 4096
"""Characters kept of a command's text."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """One settled command."""

    run_id: str
    command: str
    workdir: str
    policy: str
    ended_at: float
    """Seconds since the epoch."""
    exit_code: int | None
    signal: str | None
    sandbox: SandboxFacts
    task_id: str | None = None
    env_removed: tuple[str, ...] = ()
    gaps: tuple[str, ...] = ()
    masked: tuple[str, ...] = ()
    protected: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    network: str = "host"

    @property
    def is_telling(self) -> bool:
        """Whether there is anything to explain about it."""
        return self.sandbox.verdict is not Verdict.NONE or bool(self.sandbox.hints)

    def record(self) -> dict[str, Any]:
        """Return it as JSON values."""
        short = replace(self, command=self.command[:_LONGEST])
        return cast("dict[str, Any]", to_wire(short))


class Remembered(NamedTuple):
    """One command, and where the kernel's later records about it arrive."""

    facts: RunFacts
    trail: Trail | None = None


@dataclass(slots=True)
class RunHistory:
    """The latest commands of one session, oldest first."""

    runs: deque[Remembered] = field(
        default_factory=lambda: deque[Remembered](maxlen=MOST)
    )

    def add(self, facts: RunFacts, trail: Trail | None) -> None:
        """Remember one more."""
        self.runs.append(Remembered(facts, trail))

    def find(self, run_id: str) -> Remembered | None:
        """Return the command of that id, if it is remembered."""
        return next((r for r in reversed(self.runs) if r.facts.run_id == run_id), None)

    def last(self) -> Remembered | None:
        """Return the latest."""
        return self.runs[-1] if self.runs else None

    def load(self, records: Iterable[dict[str, Any]]) -> None:
        """Take in what was kept on disk; what cannot be read is left out."""
        for record in records:
            try:
                self.runs.append(Remembered(from_wire(RunFacts, record)))
            except InternalError:
                continue
