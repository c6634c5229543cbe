"""Which attempts test which wall, and what their outcomes mean. Pure.

An attempt counts only if it works without walls (the control); then it must not work
behind them. Where a rung says itself that it cannot stop something, getting through is
a *gap*; anywhere else it is a wall that does not hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

THROUGH: Final = "through"
OWN_FAILURE: Final = "failed by itself"
"""Beginning of what is said of an attempt that came to nothing on its own account."""


class Outcome(StrEnum):
    """What an attempt proved."""

    HOLDS = "holds"
    GAP = "gap"
    """It got through, as the rung says of itself."""
    BROKEN = "broken"
    """It got through, and must not have."""
    NOT_TRIED = "not tried"
    """It does not work without walls either, so it proves nothing here."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One way to try."""

    name: str
    """Of the function in `bashd.cli.doctor_verify_inside`."""
    words: str
    """What is tried, as the end of "a command cannot …"."""
    gap_under: tuple[str, ...] = ()
    """Rungs that say they do not stop it."""
    mode: str = "workspace-write"
    policy: str = "verify"
    alone: bool = False
    """It changes what others aim at, so it is a command of its own."""


@dataclass(frozen=True, slots=True)
class Wall:
    """What is to be kept, and the ways to try it."""

    name: str
    attempts: tuple[Attempt, ...]


_LANDLOCK: Final = ("landlock",)

WALLS: Final = (
    Wall(
        "files outside the workspace",
        (
            Attempt("write_outside", "change a file"),
            Attempt("create_outside", "make a file"),
            Attempt("remove_outside", "remove a file"),
            Attempt("rename_outside", "move a file out"),
            Attempt("link_outside", "write through a link"),
            Attempt("procfs_outside", "write through /proc/PID/root"),
            Attempt("write_workspace", "write in read-only mode", mode="read-only"),
            Attempt("write_tmp", "write into the host's /tmp"),
        ),
    ),
    Wall(
        "metadata outside the workspace",
        (
            Attempt("chmod_outside", "change a mode", gap_under=_LANDLOCK),
            Attempt("touch_outside", "change times", gap_under=_LANDLOCK),
        ),
    ),
    Wall(
        "what the host runs in the workspace",
        (
            Attempt("plant_hook", "plant a git hook", alone=True),
            Attempt(
                "plant_configuration",
                "plant a command in git's configuration",
                alone=True,
            ),
            Attempt("plant_repository", "plant a repository with a hook", alone=True),
            Attempt(
                "replace_repository", "put another repository in its place", alone=True
            ),
            Attempt("plant_file", "plant an .envrc", alone=True),
        ),
    ),
    Wall(
        "secrets",
        (
            Attempt("read_secret", "read what a masked folder holds"),
            Attempt("read_secret_by_link", "read it through a link"),
            Attempt("read_secret_by_proc", "read it through /proc"),
            Attempt("read_masked_file", "read a masked file"),
            Attempt("read_state", "look into the daemon's state"),
            Attempt("read_environment", "find a credential of the caller's"),
        ),
    ),
    Wall(
        "deputies",
        (
            Attempt("connect_path", "connect to a Unix socket outside"),
            Attempt("connect_path_by_number", "do so by a doctored family"),
            Attempt("connect_abstract", "connect to an abstract socket"),
            Attempt("connect_daemon", "connect to bashd's own socket"),
        ),
    ),
    Wall(
        "other processes",
        (
            Attempt("signal_outside", "signal one"),
            Attempt("read_memory", "read its memory"),
            Attempt("trace_outside", "trace it"),
            Attempt("take_descriptor", "take a descriptor from it"),
            Attempt("limit_outside", "limit it"),
            Attempt("schedule_outside", "schedule it"),
            Attempt("write_shared_memory", "see what it shares", gap_under=_LANDLOCK),
        ),
    ),
    Wall(
        "the kernel",
        (
            Attempt("open_knob", "open a setting for writing"),
            Attempt("make_device", "make a device"),
            Attempt("mount_something", "mount"),
            Attempt("new_user_namespace", "make a user namespace"),
            Attempt("use_io_uring", "use io_uring"),
            Attempt("use_userfaultfd", "use userfaultfd"),
            Attempt("use_bpf", "load BPF"),
            Attempt("use_perf", "use perf events"),
            Attempt("use_keyring", "use the keyrings"),
            Attempt("use_crypto_sockets", "use AF_ALG"),
            Attempt("use_packet_sockets", "use AF_PACKET"),
            Attempt("keep_privileges", "keep or gain privileges"),
        ),
    ),
    Wall(
        "the network, where it is off",
        (
            Attempt("connect_loopback", "reach the host's loopback", policy="offline"),
            Attempt("send_datagram", "send a datagram out", policy="offline"),
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class Tried:
    """One attempt on one rung."""

    name: str
    words: str
    outcome: Outcome
    said: str
    """What the kernel answered behind the walls, or why nothing was proved."""


@dataclass(frozen=True, slots=True)
class WallReport:
    """One wall on one rung."""

    name: str
    attempts: tuple[Tried, ...]

    @property
    def outcome(self) -> Outcome:
        """The worst of what was proved; *not tried* where nothing was."""
        seen = {tried.outcome for tried in self.attempts}
        order = (Outcome.BROKEN, Outcome.GAP, Outcome.HOLDS)
        return next((o for o in order if o in seen), Outcome.NOT_TRIED)


@dataclass(frozen=True, slots=True)
class RungReport:
    """One rung."""

    name: str
    usable: bool
    enforcement: str
    """``full``, ``partial`` or ``none``."""
    reason: str = ""
    """Why it is not usable."""
    gaps: tuple[str, ...] = ()
    walls: tuple[WallReport, ...] = field(default=())


def judge_wall(
    wall: Wall, rung: str, free: Mapping[str, str], walled: Mapping[str, str]
) -> WallReport:
    """Compare what came of each attempt without and behind walls.

    Args:
        wall: Its attempts.
        rung: ``bwrap`` or ``landlock``.
        free: Outcomes without walls.
        walled: Outcomes behind them.
    """
    return WallReport(
        wall.name,
        tuple(
            _judge(attempt, rung, free.get(attempt.name), walled.get(attempt.name))
            for attempt in wall.attempts
        ),
    )


def _judge(attempt: Attempt, rung: str, free: str | None, walled: str | None) -> Tried:
    def tried(outcome: Outcome, said: str) -> Tried:
        return Tried(attempt.name, attempt.words, outcome, said)

    if walled is None:
        return tried(Outcome.NOT_TRIED, "the battery was cut short")
    if walled == THROUGH:
        # Without a control, too: what gets through has got through.
        gap = rung in attempt.gap_under
        return tried(Outcome.GAP if gap else Outcome.BROKEN, THROUGH)
    if free != THROUGH:
        return tried(Outcome.NOT_TRIED, f"not possible here anyway ({free})")
    if walled.startswith(OWN_FAILURE):
        return tried(Outcome.NOT_TRIED, walled)
    return tried(Outcome.HOLDS, walled)


def exit_status(rungs: list[RungReport]) -> int:
    """Return 0 if everything holds, 1 with gaps only, 2 without a rung, 3 if broken."""
    usable = [rung for rung in rungs if rung.usable]
    if not usable:
        return 2
    outcomes = {wall.outcome for rung in usable for wall in rung.walls}
    if Outcome.BROKEN in outcomes:
        return 3
    # The first usable rung is the one a daemon stands on.
    first = {wall.outcome for wall in usable[0].walls}
    return 1 if Outcome.GAP in first or usable[0].enforcement != "full" else 0
