"""Finds what a daemon has not given back: processes, mounts, cgroups, files, fds.

Take a `snapshot` at rest, do the work, `wait_until_settled`: the check waits as long
as something is still on its way out, and fails with the difference, not with a count.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.support.enclosure import describe
from tests.support.traces import descriptors, files, mounts

if TYPE_CHECKING:
    from tests.support.daemons import RunningDaemon

KINDS = ("processes", "mounts", "cgroups", "files", "descriptors")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a daemon holds at one moment."""

    processes: frozenset[str]
    mounts: frozenset[str]
    cgroups: frozenset[str]
    files: frozenset[str]
    """Everything below the state folder and the socket's folder."""
    descriptors: frozenset[str]
    """The daemon's, by what they lead to, with how many of them."""


def snapshot(daemon: RunningDaemon) -> Snapshot:
    """Look at *daemon* now."""
    return Snapshot(
        processes=frozenset(describe(pid) for pid in daemon.enclosure.pids()),
        mounts=mounts(),
        cgroups=daemon.enclosure.cgroups(),
        files=files(daemon.state_dir) | files(daemon.socket.parent),
        descriptors=descriptors(daemon.pid),
    )


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
        time.sleep(0.02)


def _difference(before: Snapshot, after: Snapshot, kinds: tuple[str, ...]) -> list[str]:
    return [
        f"{kind}: {item}"
        for kind in kinds
        for item in sorted(getattr(after, kind) - getattr(before, kind))
    ]
