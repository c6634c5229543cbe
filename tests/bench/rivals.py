"""What bashd is measured against, and how two things are timed side by side.

Times on a shared machine drift by more than the differences that matter, so nothing is
timed alone: both sides take turns, in rounds, and the figure is the ratio of medians.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Comparison:
    """Medians of two sides that took turns."""

    ours_ms: float
    theirs_ms: float
    rounds: int

    @property
    def ratio(self) -> float:
        """Ours for one of theirs; below 1 is faster."""
        return self.ours_ms / self.theirs_ms


def compare(
    ours: Callable[[], None],
    theirs: Callable[[], None],
    *,
    rounds: int,
    batch: int = 1,
    pause_s: float = 0,
) -> Comparison:
    """Time *ours* and *theirs* in turns.

    Args:
        ours: One run of ours.
        theirs: One run of theirs.
        rounds: How many turns each has.
        batch: Runs in a turn, back to back; each is timed on its own.
        pause_s: Seconds before each run, which are not timed.
    """
    ours()
    theirs()
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for side, action in enumerate((ours, theirs)):
            for _ in range(batch):
                if pause_s:
                    time.sleep(pause_s)
                start = time.perf_counter()
                action()
                times[side].append(time.perf_counter() - start)
    ours_ms, theirs_ms = (statistics.median(side) * 1000 for side in times)
    return Comparison(ours_ms, theirs_ms, rounds * batch)


def raw_bwrap_argv(command: str = "true") -> list[str]:
    """Return the plainest bubblewrap call that confines as a cell does, less Landlock.

    The same namespaces and mounts of the same kind; root takes no user namespace.
    """
    bwrap = shutil.which("bwrap") or "bwrap"
    who = ["--cap-drop", "ALL"] if os.geteuid() == 0 else ["--unshare-user"]
    return [
        *(bwrap, *who, "--unshare-pid", "--unshare-ipc", "--unshare-uts"),
        *("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"),
        *("--tmpfs", "/tmp", "--", "bash", "-c", command),
    ]


def run_quietly(argv: list[str], env: dict[str, str] | None = None) -> None:
    """Run *argv* as a harness would, with its output in pipes, and insist on success."""
    subprocess.run(
        argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, check=True
    )
