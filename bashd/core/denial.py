"""What a command was refused, judged by its stderr and by the kernel's records. Pure.

The stderr rule is narrow on purpose: a non-zero exit, and the words that the runner's
own wall produces. An application's "Permission denied" is no denial under bubblewrap,
whose walls answer EROFS; it counts where Landlock is the wall (EACCES) and what was
refused is something Landlock would refuse, and where the line names a masked path.

The kernel's records overrule it in both directions, as far as they go: a recorded
refusal is a fact, whatever the exit status; and under the landlock runner, where every
refusal of a file is recorded, silence is a fact too, unless records were lost or a
program of the command's put a layer of its own on, whose refusals are not recorded.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Final

from bashd.core.dialects import Complaint, Errno, complaints
from bashd.core.model import Denial, Verdict
from bashd.core.paths import is_below, is_below_any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

MAX_DENIALS: Final = 16
"""More would not help a reader; the count of lines is bounded by the tail anyway."""
_MAX_COMPLAINTS: Final = 200
"""Lines looked at: a tool that complains of each file of a tree says nothing new."""

_LOOKING: Final = ("read", "execute")
_NOT_EXECUTABLE: Final = 126
"""bash's status for a command that it found and could not execute."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """What the kernel's records say about one command."""

    refusals: tuple[Denial, ...] = ()
    """With evidence ``kernel``, in their order."""
    folders: frozenset[str] = frozenset()
    """Those paths that name the folder of what was meant, not the thing itself."""
    silence_counts: bool = False
    """Nothing was lost, and nothing kept a refusal from being recorded."""
    lost: bool = False
    """Records were lost, or could have been, while the command ran."""


def classify(
    *,
    exit_code: int | None,
    stderr: str,
    runner: str | None,
    masked: Iterable[str] = (),
    visible: Iterable[str] = (),
    protected: Iterable[str] = (),
    cwd: str = "/",
    resolve: Callable[[str], str] | None = None,
) -> tuple[Verdict, tuple[Denial, ...]]:
    """Judge a settled command by its retained stderr.

    Args:
        exit_code: None for a signal death, which is never a denial by this rule.
        stderr: The retained tail, decoded.
        runner: ``bwrap`` or ``landlock``; None was not confined.
        masked: Canonical paths whose contents are hidden.
        visible: Those below them that are not.
        protected: Canonical protected paths.
        cwd: Where the command ran, for relative names.
        resolve: Makes a path canonical; None compares paths as they are spelled.

    Returns:
        ``suspected`` with one denial per telling line, or ``none``.
    """
    if not exit_code or runner is None:
        return Verdict.NONE, ()
    walls = _Walls(
        runner, exit_code, tuple(masked), tuple(visible), tuple(protected), resolve
    )
    found: dict[Denial, None] = {}
    for complaint in islice(complaints(stderr, cwd), _MAX_COMPLAINTS):
        if walls.answer_for(complaint):
            operation = complaint.operation or "access"
            found[Denial(complaint.path, operation, "stderr")] = None
        if len(found) == MAX_DENIALS:
            break
    if not found:
        return Verdict.NONE, ()
    return Verdict.SUSPECTED, tuple(found)


@dataclass(frozen=True, slots=True)
class _Walls:
    """What can be refused by us, for one command."""

    runner: str
    exit_code: int
    masked: tuple[str, ...]
    visible: tuple[str, ...]
    protected: tuple[str, ...]
    resolve: Callable[[str], str] | None

    def answer_for(self, complaint: Complaint) -> bool:
        """Whether the refusal that a line speaks of can be ours."""
        path = complaint.path
        if path is not None and self.resolve is not None:
            path = self.resolve(path)
        match complaint.errno:
            case Errno.READ_ONLY:
                return self.runner == "bwrap"
            case Errno.BUSY:
                return path is not None and self._is_protected(path)
            case Errno.PERMISSION:
                hidden = path is not None and self._is_masked(path)
                return hidden or (
                    self.runner == "landlock" and not self._only_looks(complaint)
                )

    def _only_looks(self, complaint: Complaint) -> bool:
        """Whether somebody wanted to read or execute something with a name.

        Landlock lets everything be read that is not masked: it was the file's mode.
        """
        if complaint.path is None:
            return False
        not_executable = complaint.by_shell and self.exit_code == _NOT_EXECUTABLE
        return complaint.operation in _LOOKING or not_executable

    def _is_masked(self, path: str) -> bool:
        return is_below_any(path, self.masked) and not is_below_any(path, self.visible)

    def _is_protected(self, path: str) -> bool:
        return any(is_below(path, p) or is_below(p, path) for p in self.protected)


def decide(
    suspected: tuple[Denial, ...], recorded: Recorded | None, *, runner: str | None
) -> tuple[Verdict, tuple[Denial, ...]]:
    """Weigh stderr against the kernel's records.

    Args:
        suspected: What `classify` found.
        recorded: None where the kernel's records are not read.
        runner: ``bwrap`` or ``landlock``.
    """
    if recorded is None:
        return (Verdict.SUSPECTED if suspected else Verdict.NONE), suspected
    # Under bwrap a read-only mount answers before Landlock is asked: no record there.
    told_all = recorded.silence_counts and runner == "landlock"
    if recorded.refusals:
        known, rest = _matched(recorded, suspected)
        denials = known if told_all else (*known, *rest)
        return Verdict.DENIED, tuple(dict.fromkeys(denials))[:MAX_DENIALS]
    if suspected and not told_all:
        return Verdict.SUSPECTED, suspected
    return (Verdict.UNKNOWN if recorded.lost else Verdict.NONE), ()


def _matched(
    recorded: Recorded, suspected: tuple[Denial, ...]
) -> tuple[tuple[Denial, ...], tuple[Denial, ...]]:
    """Give recorded refusals the names that stderr has for them.

    For what is made, removed or renamed the kernel names the folder only; a path that
    ends in a slash says so.

    Returns:
        What is recorded, and the suspicions that no record speaks of.
    """
    rest = dict.fromkeys(suspected)
    known: list[Denial] = []
    for refusal in recorded.refusals:
        in_folder = (
            refusal.path in recorded.folders and refusal.operation in _OF_ENTRIES
        )
        named = [one for one in rest if _is_about(one, refusal, in_folder=in_folder)]
        for suspicion in named:
            del rest[suspicion]
        unnamed = replace(refusal, path=f"{refusal.path}/") if in_folder else refusal
        known += [_named(refusal, suspicion) for suspicion in named] or [unnamed]
    return tuple(known), tuple(rest)


def _is_about(suspicion: Denial, refusal: Denial, *, in_folder: bool) -> bool:
    if suspicion.path is None:
        return False
    if not in_folder:
        return suspicion.path == refusal.path
    if posixpath.dirname(suspicion.path) != refusal.path:
        return False
    # The kernel cannot tell a hard link from a rename, and stderr is often vague.
    return suspicion.operation in (*_VAGUE, refusal.operation) or (
        suspicion.operation in _MAKING and refusal.operation in _MAKING
    )


_MAKING: Final = ("create", "rename", "link")
_OF_ENTRIES: Final = (*_MAKING, "remove")
_VAGUE: Final = ("access", "write")


def _named(refusal: Denial, suspicion: Denial) -> Denial:
    vague = suspicion.operation in _VAGUE
    operation = refusal.operation if vague else suspicion.operation
    return replace(refusal, path=suspicion.path, operation=operation)
