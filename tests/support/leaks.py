"""Finds what a daemon has not given back: processes, mounts, cgroups, files, fds.

Take a `snapshot_at_rest`, do the work, `wait_until_settled`: the check waits as long
as something is still on its way out, and fails with the difference, not with a count.
Processes and descriptors are told apart by what they are, not by number: a spare that
was used is replaced by another one just like it, and so is a cell: whenever something
else on the machine mounts or unmounts, the next command gets a new one.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.support.enclosure import describe
from tests.support.traces import descriptors, files, mounts

if TYPE_CHECKING:
    from tests.support.daemons import RunningDaemon

KINDS = ("processes", "mounts", "cgroups", "files", "descriptors")
_CELL = re.compile(r"\bbashd/[0-9a-f]{16}\b")
"""A cell's cgroup."""
_COMMAND = re.compile(r"/\d+$")
"""A command's cgroup in it; a spare has one, too."""
_OWN_PROCESS = "keeper.main("
"""Marks the processes of a cell itself; the numbers among their arguments are
descriptors."""
_LOOK_S = 0.05
_LOOKS = 6
"""So many equal looks in a row are rest: spares come within some 20 ms of each other."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a daemon holds at one moment, and how many of each."""

    processes: Counter[str]
    mounts: Counter[str]
    cgroups: Counter[str]
    files: Counter[str]
    """Everything below the state folder and the socket's folder."""
    descriptors: Counter[str]
    """The daemon's, by what they lead to."""


def snapshot(daemon: RunningDaemon) -> Snapshot:
    """Look at *daemon* now."""
    return Snapshot(
        processes=Counter(map(_process, daemon.enclosure.pids())),
        mounts=Counter(mounts()),
        cgroups=Counter(
            _COMMAND.sub("/N", _CELL.sub("bashd/CELL", name))
            for name in daemon.enclosure.cgroups()
        ),
        files=Counter(files(daemon.state_dir) | files(daemon.socket.parent)),
        descriptors=descriptors(daemon.pid),
    )


def _process(pid: int) -> str:
    words = describe(pid).partition(" ")[2]
    return re.sub(r" \d+\b", " N", words) if _OWN_PROCESS in words else words


def snapshot_at_rest(daemon: RunningDaemon, *, within_s: float = 10) -> Snapshot:
    """Wait until *daemon* stops changing, and return what it holds then.

    Raises:
        AssertionError: It never comes to rest.
    """
    deadline = time.monotonic() + within_s
    last, equal = snapshot(daemon), 0
    while equal < _LOOKS:
        assert time.monotonic() < deadline, "the daemon does not come to rest"
        time.sleep(_LOOK_S)
        now = snapshot(daemon)
        equal = equal + 1 if now == last else 0
        last = now
    return last


def wait_until_settled(
    daemon: RunningDaemon,
    before: Snapshot,
    *,
    kinds: tuple[str, ...] = KINDS,
    within_s: float = 10,
) -> None:
    """Wait until nothing is there that was not there *before*.

    Raises:
        AssertionError: Something is still there; the message lists it.
    """
    deadline = time.monotonic() + within_s
    while left := _difference(before, snapshot(daemon), kinds):
        if time.monotonic() > deadline:
            raise AssertionError("left behind:\n" + "\n".join(left))
        time.sleep(_LOOK_S)


def _difference(before: Snapshot, after: Snapshot, kinds: tuple[str, ...]) -> list[str]:
    return [
        f"{kind}: {item} (x{count} more)"
        for kind in kinds
        for item, count in sorted(
            (getattr(after, kind) - getattr(before, kind)).items()
        )
    ]
