"""How much is measured: everything, or enough to see where one stands."""

from __future__ import annotations

from dataclasses import dataclass

from tests.benchmarks.figures import READ_ONLY, WORKSPACE_WRITE


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes of the works."""

    accounts: tuple[str, ...]
    modes: tuple[str, ...]
    rounds: int
    """Turns of each contender where a call takes milliseconds."""
    slow_rounds: int
    """The same where it takes tens of milliseconds."""
    rate_rounds: int
    rate_s: float
    clients: tuple[int, ...]
    output_mb: int
    output_rounds: int
    flood_rounds: int
    idle_s: float
    tasks: int
    commands: int
    sessions: tuple[int, ...]
    """Points of this curve, as the next four."""
    live_tasks: tuple[int, ...]
    files: tuple[int, ...]
    paths: tuple[int, ...]
    rules: tuple[int, ...]


FULL = Plan(
    accounts=("root", "user"),
    modes=(READ_ONLY, WORKSPACE_WRITE),
    rounds=40,
    slow_rounds=25,
    rate_rounds=3,
    rate_s=1.5,
    clients=(1, 4, 16, 64),
    output_mb=5_000,
    output_rounds=2,
    flood_rounds=4,
    idle_s=60,
    tasks=1_000,
    commands=10_000,
    sessions=(1, 10, 50, 100, 250, 500),
    live_tasks=(1, 10, 100, 300, 1_000),
    files=(10, 1_000, 25_000, 250_000),
    # Bubblewrap takes 9,000 arguments, three for each.
    paths=(10, 100, 300, 1_000, 2_500),
    rules=(10, 100, 300, 1_000, 3_000),
)

QUICK = Plan(
    accounts=("root",),
    modes=(WORKSPACE_WRITE,),
    rounds=20,
    slow_rounds=8,
    rate_rounds=2,
    rate_s=1,
    clients=(1, 16),
    output_mb=1_000,
    output_rounds=2,
    flood_rounds=2,
    idle_s=10,
    tasks=200,
    commands=1_000,
    sessions=(1, 50),
    live_tasks=(1, 100),
    files=(10, 25_000),
    paths=(10, 300),
    rules=(10, 3_000),
)

TINY = Plan(
    accounts=("root",),
    modes=(READ_ONLY,),
    rounds=2,
    slow_rounds=2,
    rate_rounds=1,
    rate_s=0.2,
    clients=(1, 2),
    output_mb=10,
    output_rounds=1,
    flood_rounds=1,
    idle_s=0.2,
    tasks=3,
    commands=5,
    sessions=(1, 2),
    live_tasks=(1, 2),
    files=(1, 10),
    paths=(1, 10),
    rules=(1, 10),
)
"""For the test that everything can be measured at all."""
