"""The speed budgets, all in one place, and whether a run keeps them.

Most are ratios of two things measured in turns in the same run, because ratios travel
between machines and times do not. The bounds are the design's (section 10, "Budgets")
where `Budget.source` says so; the others are stated here with their reason.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.benchmarks.figures import OURS, WORKS, Findings, Setting

_DESIGN = "design, budgets"
_SPEED = "speed goals: less than raw bubblewrap, and not slower than its peers"
_FLAT = "a cost that grows by more than a half is felt; noise alone makes a tenth"


@dataclass(frozen=True, slots=True)
class Budget:
    """What one figure of bashd's may be."""

    work: str
    bound: float
    source: str
    against: str = ""
    """Contender of the same work whose figure divides ours; empty for the value."""
    at_least: bool = False
    flat: bool = False
    """Of a curve: its last point divided by its first, each relative to *against*."""
    aim: float | None = None
    """What the design would like, beyond what it asks."""

    @property
    def title(self) -> str:
        """What is bounded, in words."""
        work = WORKS[self.work]
        if self.flat:
            return f"{work.title}: last to first, beside {self.against}"
        if self.against:
            return f"{work.title}: relative to {self.against}"
        return work.title

    @property
    def unit(self) -> str:
        """Unit of bound and value."""
        return "x" if self.against else WORKS[self.work].unit


BUDGETS = (
    Budget("warm", 0.6, _DESIGN, "bwrap", aim=0.45),
    Budget("warm", 2.5, _SPEED, "bash"),
    Budget("paced", 0.75, _DESIGN, "bwrap"),
    Budget("walls", 0.3, "walls: what they may add, median of paired runs"),
    Budget("cold", 15, _DESIGN, "bwrap"),
    Budget("rate-16", 2, _DESIGN, "bwrap", at_least=True),
    Budget("cli", 2, _DESIGN, "bare python3"),
    Budget("cli", 1.5, _DESIGN, "codex"),
    Budget("output", 0.7, _DESIGN, "cat > file", at_least=True),
    Budget("output-memory", 20, _DESIGN),
    Budget("flood", 5, _SPEED, "bashd, quiet"),
    Budget("idle-memory", 45, _DESIGN),
    # One look when the first cell may have been idle for too long; nothing else.
    Budget("idle-wakeups", 3, "speed goals: no wake-ups but that for idle cells"),
    # "0 % CPU": not a thousandth.
    Budget("idle-cpu", 60, _DESIGN),
    Budget("cell-memory", 16, _DESIGN),
    Budget("tasks-memory", 150, _DESIGN),
    # "No busy loop": a hundredth of a processor.
    Budget("tasks-cpu", 1, _DESIGN),
    Budget("tasks-readable", 100, _DESIGN, at_least=True),
    # A kilobyte a command would be 10 MB, and a leak; descriptors may not leak at all.
    Budget("many-memory", 10, "a leak of a kilobyte a command shows"),
    Budget("many-descriptors", 0, "nothing of a command stays open"),
    *(
        Budget(f"grow-{what}", 1.5, _FLAT, "bwrap", flat=True)
        for what in ("sessions", "tasks", "files", "paths", "rules")
    ),
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A budget in one setting of a run."""

    budget: Budget
    setting: Setting
    value: float

    @property
    def kept(self) -> bool:
        """Whether it holds."""
        if self.budget.at_least:
            return self.value >= self.budget.bound
        return self.value <= self.budget.bound


def judge(findings: Findings) -> tuple[list[Verdict], list[Budget]]:
    """Return a verdict for each setting of each budget, and what was not measured."""
    verdicts: list[Verdict] = []
    missing: list[Budget] = []
    for budget in BUDGETS:
        found = [
            Verdict(budget, setting, value)
            for setting in findings.settings(budget.work)
            if (value := _value(findings, budget, setting)) is not None
        ]
        verdicts += found
        if not found:
            missing.append(budget)
    return verdicts, missing


def _value(findings: Findings, budget: Budget, setting: Setting) -> float | None:
    ours = findings.at(budget.work, setting, OURS)
    if not ours:
        return None
    if not budget.against:
        return ours[0].summary.median
    theirs = findings.at(budget.work, setting, budget.against)
    # A curve's points are compared one with one: both sides must have all of them.
    if not theirs or len(ours) != len(theirs):
        return None
    ratios = [
        one.summary.median / other.summary.median
        for one, other in zip(ours, theirs, strict=True)
    ]
    return ratios[-1] / ratios[0] if budget.flat else ratios[0]
