"""Protected metadata: what kinds there are, and how two looks at it compare. Pure.

The first line of protection is mounts (`bashd.core.confinement`). This is the second:
what was there before a command is compared with what is there after it, and a
difference becomes a finding that says what was done about it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from bashd.core.model import Denial

HOOKS_NAME: Final = ".git/hooks"
CONFIG_NAME: Final = ".git/config"
WORKTREE_CONFIG_NAME: Final = ".git/config.worktree"
GIT_NAMES: Final = (HOOKS_NAME, CONFIG_NAME, WORKTREE_CONFIG_NAME)
"""Names in a policy's ``protected`` that stand for a repository's own, wherever its
folder is: linked worktrees, submodules, repositories further down."""

SAMPLE: Final = ".sample"
"""Ending of hooks that git never runs. Source: githooks(5)."""
ASIDE: Final = ".put-aside-by-bashd-"
"""Middle of the name that a change which got through is given; a run's id follows."""


class Kind(Enum):
    """What a protected path is, which decides how a change is made harmless."""

    HOOKS = "hooks"
    """A folder whose executable files git runs."""
    CONFIG = "config"
    """A git configuration file: only keys that run code or redirect count."""
    PLAIN = "plain"
    """Any other file or folder."""


class Target(NamedTuple):
    """One protected path."""

    path: str
    kind: Kind
    root: str
    """The writable root it lies in."""


class Entry(NamedTuple):
    """One file system object at one moment."""

    type: str
    """``f``, ``d``, ``l`` or ``?``."""
    dev: int
    ino: int
    mode: int
    size: int
    mtime_ns: int
    ctime_ns: int
    """Of a folder, its birth (or 0): numbers of inodes are used again."""
    links: int = 1
    """Of a file, its names: what is written by another one is not kept by a mount."""

    @property
    def identity(self) -> tuple[int, int, int]:
        """What a rename keeps and a replacement changes."""
        return (self.dev, self.ino, self.ctime_ns if self.type == "d" else 0)

    @property
    def executable(self) -> bool:
        """Whether anybody may execute it."""
        return bool(self.mode & 0o111)


Tree = Mapping[str, Entry]
"""Relative path to entry; ``""`` is the protected path itself, missing if it is."""


class What(Enum):
    """What happened to an entry."""

    CREATED = "create"
    CHANGED = "write"
    REMOVED = "remove"


class Change(NamedTuple):
    """One difference between two looks at a protected path."""

    relative: str
    what: What


def compare(before: Tree, after: Tree) -> tuple[Change, ...]:
    """Return what differs, folders before what lies in them.

    Folders count by being there: their times change whenever something in them does,
    and that is reported for itself. A file that was replaced by its equal (same size,
    mode and modification time) still counts: its inode is another.
    """
    found: list[Change] = []
    for relative in sorted({*before, *after}):
        old, new = before.get(relative), after.get(relative)
        if old is None:
            found.append(Change(relative, What.CREATED))
        elif new is None:
            found.append(Change(relative, What.REMOVED))
        elif _differs(old, new):
            found.append(Change(relative, What.CHANGED))
    return tuple(found)


def _differs(old: Entry, new: Entry) -> bool:
    if old.type == new.type == "d":
        return old.mode != new.mode
    return old != new


@dataclass(frozen=True, slots=True)
class Findings:
    """What the check after a command found out and did."""

    denials: tuple[Denial, ...] = ()
    """Changes that were undone or made harmless; evidence ``policy``."""
    notes: tuple[str, ...] = ()
    """What was left as it is and should be known, one line each."""

    def __bool__(self) -> bool:
        return bool(self.denials or self.notes)

    def __add__(self, other: Findings) -> Findings:
        return Findings(self.denials + other.denials, self.notes + other.notes)


def aside_name(name: str, run_id: str) -> str:
    """Return the name under which a change that got through is kept."""
    return f"{name}{ASIDE}{run_id[:8]}"


def is_hook(name: str) -> bool:
    """Whether git would run an executable file of this name among its hooks."""
    return not name.endswith(SAMPLE) and ASIDE not in name
