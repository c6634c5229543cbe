"""What the daemon has done and what it holds, counted for Prometheus.

Counting is a few additions to plain numbers in the daemon's one thread; text is made
only when somebody asks. Names and labels say nothing of a user: no uid, no command, no
path. Source of the format: https://prometheus.io/docs/instrumenting/exposition_formats
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from bashd.core.model import RunResult, SandboxFacts
    from bashd.daemon.task import Task

BOUNDS_S: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0),
)
"""From a warm `true`, some two milliseconds, to the longest timeout by default."""

Labels = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class Histogram:
    """Durations, counted by the bounds they stay under."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))
    """By bound, not yet summed up; the last one is for what exceeds all."""
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.seconds += seconds

    def lines(self, name: str, labels: Labels) -> Iterator[str]:
        """Return the histogram as Prometheus wants it: each bound with all below."""
        total = 0
        for bound, count in zip(BOUNDS_S, self.counts, strict=False):
            total += count
            yield _line(f"{name}_bucket", (*labels, ("le", f"{bound:g}")), total)
        total += self.counts[-1]
        yield _line(f"{name}_bucket", (*labels, ("le", "+Inf")), total)
        yield _line(f"{name}_sum", labels, self.seconds)
        yield _line(f"{name}_count", labels, total)


@dataclass(slots=True)
class Metrics:
    """The daemon's counters, and gauges that are read when asked for."""

    gauges: dict[str, tuple[str, Callable[[], float]]] = field(
        default_factory=dict[str, "tuple[str, Callable[[], float]]"]
    )
    """Name to what it means and how it is read."""
    commands: Counter[tuple[str, str, str]] = field(
        default_factory=Counter["tuple[str, str, str]"]
    )
    """By kind (``run`` or ``task``), mode and outcome."""
    seconds: dict[str, Histogram] = field(default_factory=dict[str, Histogram])
    """How long foreground calls took, from request to result, by mode."""
    prepared: Histogram = field(default_factory=Histogram)
    """How long it took until a command had its policy, cell and environment."""
    denials: Counter[str] = field(default_factory=Counter[str])
    """Commands that were refused something, by mode."""
    refusals: Counter[str] = field(default_factory=Counter[str])
    """Calls that ran nothing, by error code."""
    output: Counter[str] = field(default_factory=Counter[str])
    """Bytes that commands have written, by stream."""

    def run_ended(self, mode: str, result: RunResult, seconds: float) -> None:
        """Count a foreground command."""
        outcome = _outcome(
            result.exit_code, timed_out=result.timed_out, aborted=result.aborted
        )
        self.commands["run", mode, outcome] += 1
        known = self.seconds.get(mode)
        if known is None:
            known = self.seconds[mode] = Histogram()
        known.add(seconds)
        self._facts(mode, result.sandbox, result.stdout.bytes, result.stderr.bytes)

    def task_ended(self, task: Task) -> None:
        """Count a background task."""
        ended, mode = task.ended, str(task.mode)
        outcome = "lost" if ended is None or ended.lost else _outcome(task.exit_code)
        self.commands["task", mode, outcome] += 1
        self._facts(mode, task.sandbox, task.stdout.total, task.stderr.total)

    def refused(self, code: str) -> None:
        """Count a call that ended in an error instead of a result."""
        self.refusals[code] += 1

    def _facts(
        self, mode: str, sandbox: SandboxFacts | None, stdout: int, stderr: int
    ) -> None:
        if sandbox is not None and sandbox.denied:
            self.denials[mode] += 1
        self.output["stdout"] += stdout
        self.output["stderr"] += stderr

    def text(self) -> str:
        """Return everything in Prometheus' text format."""
        return "\n".join([*self._lines(), ""])

    def _lines(self) -> Iterator[str]:
        name = "bashd_commands_total"
        yield from _head(name, "counter", "Commands that have ended.")
        for (kind, mode, outcome), count in sorted(self.commands.items()):
            labels = (("kind", kind), ("mode", mode), ("outcome", outcome))
            yield _line(name, labels, count)
        yield from _counter(
            "bashd_denials_total", "mode", self.denials, "Commands refused something."
        )
        yield from _counter(
            "bashd_refused_calls_total",
            "code",
            self.refusals,
            "Calls that ran nothing.",
        )
        yield from _counter(
            "bashd_output_bytes_total",
            "stream",
            self.output,
            "Bytes written by commands.",
        )
        name = "bashd_run_seconds"
        yield from _head(name, "histogram", "Foreground calls, from request to result.")
        for mode, histogram in sorted(self.seconds.items()):
            yield from histogram.lines(name, (("mode", mode),))
        name = "bashd_prepare_seconds"
        yield from _head(
            name, "histogram", "Policy, cell and environment of a command."
        )
        yield from self.prepared.lines(name, ())
        for gauge, (about, read) in self.gauges.items():
            yield from _head(gauge, "gauge", about)
            yield _line(gauge, (), read())


def _outcome(
    exit_code: int | None, *, timed_out: bool = False, aborted: bool = False
) -> str:
    if timed_out:
        return "timed_out"
    if aborted:
        return "aborted"
    if exit_code is None:
        return "signalled"
    return "succeeded" if exit_code == 0 else "failed"


def _head(name: str, kind: str, about: str) -> Iterator[str]:
    yield f"# HELP {name} {about}"
    yield f"# TYPE {name} {kind}"


def _counter(
    name: str, label: str, counts: Mapping[str, int], about: str
) -> Iterator[str]:
    yield from _head(name, "counter", about)
    for value, count in sorted(counts.items()):
        yield _line(name, ((label, value),), count)


def _line(name: str, labels: Labels, value: float) -> str:
    # Values of labels are words of ours: nothing in them needs escaping.
    shown = ",".join(f'{key}="{word}"' for key, word in labels)
    return f"{name}{{{shown}}} {value!r}" if shown else f"{name} {value!r}"
