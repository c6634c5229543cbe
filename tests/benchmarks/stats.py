"""Medians, spread, and taking turns: how a figure comes about.

Times on a shared machine drift by more than the differences that matter, so nothing is
timed alone. All contenders take turns in rounds, in an order drawn anew for each round,
and a figure is a median with its quartiles; what travels between machines is the ratio
of two medians of the same rounds.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class Summary:
    """Some samples of one thing."""

    median: float
    low: float
    """First quartile."""
    high: float
    """Third quartile."""
    count: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> Summary:
        """Summarise samples, of which there must be one."""
        median = statistics.median(samples)
        if len(samples) == 1:
            return cls(median, median, median, 1)
        low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
        return cls(median, low, high, len(samples))

    def scaled(self, factor: float) -> Summary:
        """Return the same in another unit."""
        return Summary(
            self.median * factor, self.low * factor, self.high * factor, self.count
        )


@dataclass(frozen=True, slots=True)
class Contender:
    """Somebody who takes turns."""

    name: str
    take: Callable[[int, float], list[float]]
    """Makes a number of calls with a pause before each; returns the seconds of each."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured."""

    rounds: int
    batch: int = 1
    """Calls in a turn, one after the other, at most."""
    pause_s: float = 0
    """Before each call, not timed."""
    turn_s: float = 0.2
    """Slow contenders make fewer calls in a turn, so that it takes no longer; one whose
    single call does sits out rounds in proportion."""
    least: int = 5
    """But has this many turns, unless there are fewer rounds."""

    def pace(self, call_s: float) -> tuple[int, int]:
        """Return in every how many rounds somebody has a turn, and with how many calls.

        Args:
            call_s: What one call takes.
        """
        whole_s = call_s + self.pause_s
        batch = max(1, min(self.batch, int(self.turn_s / whole_s)))
        at_most = max(1, self.rounds // self.least)
        return min(at_most, max(1, round(batch * whole_s / self.turn_s))), batch


def take_turns(
    contenders: Sequence[Contender], effort: Effort, rng: Random
) -> tuple[dict[str, Summary], dict[str, str]]:
    """Have all contenders take turns.

    Returns:
        Seconds by name, and by name the reason why somebody could not take part, or
        not to the end.
    """
    samples: dict[str, list[float]] = {}
    failed: dict[str, str] = {}
    paces: dict[str, tuple[int, int]] = {}
    for each in contenders:
        try:
            each.take(1, 0)  # caches, cells and connections are made here
            paces[each.name] = effort.pace(each.take(1, 0)[0])
            samples[each.name] = []
        except Exception as error:  # noqa: BLE001 - one that cannot is reported
            failed[each.name] = str(error)
    for number in range(effort.rounds):
        due = [c for c in contenders if c.name in paces]
        due = [c for c in due if not number % paces[c.name][0]]
        rng.shuffle(due)
        for each in due:
            try:
                batch = paces[each.name][1]
                samples[each.name] += each.take(batch, effort.pause_s)
            except Exception as error:  # noqa: BLE001 - it drops out
                failed[each.name] = f"after {len(samples[each.name])} calls: {error}"
                del paces[each.name]
    samples = {name: times for name, times in samples.items() if times}
    return {name: Summary.of(times) for name, times in samples.items()}, failed
