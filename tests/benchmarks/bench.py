"""What every work is given, and how it hands in what it finds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from tests.benchmarks.figures import Absence, Figure, Findings, Setting
from tests.benchmarks.plan import Plan
from tests.benchmarks.scene import Scene
from tests.benchmarks.stats import Contender, Effort, Summary, take_turns
from tests.benchmarks.toolbox import Toolbox


@dataclass(slots=True)
class Bench:
    """A run."""

    plan: Plan
    box: Toolbox
    rng: Random
    findings: Findings = field(default_factory=Findings)
    began: float = field(default_factory=time.monotonic)

    def say(self, text: str) -> None:
        """Tell whoever waits what is being done."""
        minutes, seconds = divmod(int(time.monotonic() - self.began), 60)
        print(f"bench: {minutes:3}:{seconds:02}  {text}", file=sys.stderr, flush=True)

    def found(
        self,
        work: str,
        setting: Setting,
        contender: str,
        summary: Summary,
        at: float | None = None,
    ) -> None:
        """Hand in a figure."""
        self.findings.figures.append(Figure(work, setting, contender, summary, at))

    def missed(self, what: str, reason: str, *, broken: bool = False) -> None:
        """Say what has no figure; once is enough for each reason."""
        absence = Absence(what, reason, broken=broken)
        if absence not in self.findings.absences:
            self.findings.absences.append(absence)
            self.say(f"no figure for {what}: {reason}")

    def compare(
        self,
        work: str,
        setting: Setting,
        contenders: Sequence[Contender],
        effort: Effort,
        at: float | None = None,
    ) -> None:
        """Have contenders take turns and hand in their milliseconds."""
        summaries, failed = take_turns(contenders, effort, self.rng)
        for name, summary in summaries.items():
            self.found(work, setting, name, summary.scaled(1000), at)
        for name, reason in failed.items():
            # A peer that cannot run here is no fault of the run's.
            ours = name.startswith("bashd") and "landlock" not in name
            self.missed(f"{name} ({setting})", reason, broken=ours)


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of a run that may fail without taking the others along."""

    key: str
    """What ``--only`` names."""
    scene: Scene
    mode: str
    run: Callable[[Bench, Scene, str], None]

    @property
    def title(self) -> str:
        """What is said before it begins."""
        return f"{self.key} ({self.scene.name}, {self.mode})"
