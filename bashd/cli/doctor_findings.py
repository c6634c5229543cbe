"""What the doctor finds, and what that means for the rung bashd will stand on. Pure.

`doctor_walls` and `doctor_host` look; this file only judges. The rungs and what each
enforces are those of the daemon: bubblewrap with Landlock and seccomp behind it, then
Landlock and seccomp alone, then nothing, and nothing means that no command runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from bashd.core.confinement import LANDLOCK_GAPS


class State(StrEnum):
    """How much of something is there. ``unknown`` is not ``missing``."""

    OK = "ok"
    LIMITED = "limited"
    MISSING = "missing"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    name: str
    state: State
    detail: str
    """What was seen, as a clause."""
    advice: str = ""
    """What to do for a better state; empty where nothing need be done."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Which rung a daemon of this account stands on here."""

    runner: str | None
    enforcement: str
    """``full``, ``partial`` or ``none``."""
    reason: str
    gaps: tuple[str, ...] = field(default=())
    """What the rung does not stop."""
    better: tuple[str, ...] = field(default=())
    """What to do for a better rung, the most useful first."""

    @property
    def exit_status(self) -> int:
        """0 where confinement is full, 1 where it is partial, 2 where there is none."""
        return {"full": 0, "partial": 1}.get(self.enforcement, 2)


LANDLOCK_ABIS: Final = (
    (1, "files and folders"),
    (2, "moves between folders"),
    (3, "truncation"),
    (4, "TCP ports"),
    (5, "device ioctls"),
    (6, "signals and abstract sockets"),
    (7, "records of refusals"),
)
"""ABI and what it added. Source: landlock(7) and the kernel's userspace API guide."""


def landlock_words(abi: int) -> str:
    """Say what *abi* can mediate and what it cannot yet."""
    has = [words for least, words in LANDLOCK_ABIS if abi >= least]
    lacks = [f"{words} ({least})" for least, words in LANDLOCK_ABIS if abi < least]
    text = f"ABI {abi}: {', '.join(has)}"
    return f"{text}; not yet: {', '.join(lacks)}" if lacks else text


def judge(findings: list[Finding], *, root: bool, wanted: str = "auto") -> Verdict:
    """Decide which rung the findings allow.

    Args:
        findings: At least ``bubblewrap``, ``landlock`` and ``seccomp``.
        root: Whether the daemon would be root's.
        wanted: ``[sandbox] runner``: ``auto``, ``bwrap`` or ``landlock``.
    """
    by_name = {finding.name: finding for finding in findings}
    better = tuple(
        finding.advice
        for name in ("bubblewrap", "user namespaces", "apparmor", "landlock", "seccomp")
        if (finding := by_name.get(name)) and finding.advice
    )
    bwrap, landlock, seccomp = (
        by_name[name].state for name in ("bubblewrap", "landlock", "seccomp")
    )
    if wanted in ("auto", "bwrap") and bwrap is State.OK and seccomp is State.OK:
        return _on_bwrap(landlock, root=root, better=better)
    if wanted in ("auto", "landlock") and landlock in (State.OK, State.LIMITED):
        if seccomp is State.OK:
            reason = _why_not_bwrap(by_name["bubblewrap"], wanted)
            return Verdict("landlock", "partial", reason, LANDLOCK_GAPS, better)
        reason = "Landlock alone needs seccomp, and that does not work here"
        return Verdict(None, "none", reason, better=better)
    return Verdict(None, "none", _why_nothing(by_name, wanted), better=better)


def _on_bwrap(landlock: State, *, root: bool, better: tuple[str, ...]) -> Verdict:
    if landlock is State.OK:
        reason = "bubblewrap, Landlock and seccomp all enforce"
        return Verdict("bwrap", "full", reason, better=better)
    if landlock is State.LIMITED:
        reason = "bubblewrap enforces; this kernel's Landlock behind it is an old one"
        gaps = ("abstract Unix sockets of the host's network can be reached",)
        return Verdict("bwrap", "partial", reason, gaps, better)
    if landlock is State.UNKNOWN:
        reason = "bubblewrap enforces; whether Landlock does could not be told"
        return Verdict("bwrap", "partial", reason, better=better)
    if root:
        reason = "without Landlock, uid 0 in a cell could write the kernel's settings"
        gaps = ("commands of root are refused; those of other users run",)
        return Verdict("bwrap", "partial", reason, gaps, better)
    reason = "bubblewrap enforces, with no second wall behind it"
    gaps = ("one wall (mounts) instead of two",)
    return Verdict("bwrap", "partial", reason, gaps, better)


def _why_not_bwrap(bwrap: Finding, wanted: str) -> str:
    if wanted == "landlock":
        return "the configuration asks for this runner"
    return f"bubblewrap is not usable: {bwrap.detail}"


def _why_nothing(by_name: dict[str, Finding], wanted: str) -> str:
    walls = ("bubblewrap", "landlock") if wanted == "auto" else (wanted,)
    walls = tuple("bubblewrap" if name == "bwrap" else name for name in walls)
    seen = "; ".join(f"{name}: {by_name[name].detail}" for name in walls)
    return f"nothing here can confine a command ({seen})"
