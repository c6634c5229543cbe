"""Finds repositories below the writable roots without walking the tree for each call.

Theory of operation. Once, when a root gets its first cell, its folders are walked
breadth first, up to a bound, and watched. From then on only what the watches report is
looked at: a ``.git`` that appears, a folder that appears (and then everything in it),
the parts of a bare repository. What is not seen: a repository that appears in a folder
beyond the bounds, until something makes the walk start again; one that appears and
goes between two looks, which does no harm.

Run as the peer.
"""

from __future__ import annotations

import os
from collections import deque
from typing import Final

from bashd.core.paths import is_below
from bashd.daemon.folder_watch import Changes, FolderWatch

MAX_FOLDERS: Final = 2048
"""Watched at most, about one kilobyte of the kernel's memory each. A quarter of the
smallest max_user_watches there is (8192)."""
MAX_FIRST_FOLDERS: Final = 1024
"""Of which so many are found by the walk; the rest is for folders made later."""
MAX_ENTRIES: Final = 20_000
"""Names read in one go: some 20 milliseconds."""
_LATE: Final = frozenset(
    ("node_modules", ".venv", "venv", "target", "__pycache__", "build", "dist", ".tox")
)
"""Folders of these names are full of what others made, and looked at last."""
_BARE: Final = frozenset(("HEAD", "objects", "refs"))
"""What makes a folder a repository. Source: is_git_directory() in git's setup.c."""


class RepositoryWatch:
    """Repositories below *roots*, those of the roots themselves left out."""

    def __init__(self, roots: tuple[str, ...], watch: FolderWatch | None) -> None:
        self._roots = roots
        self._watch = watch
        self._known: dict[str, None] = {}
        self.bounded = watch is None
        """Something was left out of the walk: the tree is larger than the bounds."""

    @property
    def known(self) -> tuple[str, ...]:
        """``.git`` paths and folders of bare repositories, in the order found."""
        return tuple(self._known)

    def walk(self) -> None:
        """Walk every root from its top, as after a loss of events."""
        self._scan(deque(self._roots), MAX_FIRST_FOLDERS)

    def take(self, changes: Changes) -> None:
        """Look at what changed."""
        if changes.overflow:
            self.walk()
            return
        fresh: dict[str, None] = {}
        for event in changes.events:
            path = f"{event.folder.rstrip('/')}/{event.name}"
            if not event.made:
                self._forget(path)
            elif event.name == ".git":
                self._remember(path)
            elif event.name in _BARE:
                self._look_at(event.folder)
            elif event.is_dir:
                fresh[path] = None
        if fresh:
            self._scan(deque(fresh), MAX_FOLDERS)

    def _remember(self, path: str) -> None:
        if all(path != f"{root.rstrip('/')}/.git" for root in self._roots):
            self._known[path] = None

    def _forget(self, path: str) -> None:
        for known in [known for known in self._known if is_below(known, path)]:
            del self._known[known]

    def _look_at(self, folder: str) -> None:
        try:
            names = set(os.listdir(folder))  # noqa: PTH208 - names are enough
        except OSError:
            return
        if names >= _BARE and folder not in self._roots:
            self._remember(folder)

    def _scan(self, folders: deque[str], most_folders: int) -> None:
        """Watch and read folders breadth first.

        The watch comes first, so that nothing is made between the two.
        """
        late: deque[str] = deque()
        left = MAX_ENTRIES
        while folders or late:
            folder = folders.popleft() if folders else late.popleft()
            self._watch_folder(folder, most_folders)
            if left <= 0:
                return
            names, inner = _read_folder(folder, left)
            left -= len(names)
            self.bounded |= left <= 0
            for name in self._inside(folder, names, inner):
                queue = late if name in _LATE else folders
                queue.append(f"{folder.rstrip('/')}/{name}")

    def _watch_folder(self, folder: str, most_folders: int) -> None:
        if self._watch is None or len(self._watch) >= most_folders:
            self.bounded = True
        elif not self._watch.add(folder):
            self.bounded |= self._watch.exhausted

    def _inside(self, folder: str, names: set[str], inner: list[str]) -> list[str]:
        """Note what a folder is, and return which of those in it to look at."""
        if ".git" in names:
            self._remember(f"{folder.rstrip('/')}/.git")
        if names >= _BARE and folder not in self._roots:
            self._remember(folder)
            return []
        return [name for name in inner if name != ".git"]


def _read_folder(folder: str, most: int) -> tuple[set[str], list[str]]:
    """Return the names in a folder, and which of them are folders themselves."""
    names: set[str] = set()
    inner: list[str] = []
    try:
        with os.scandir(folder) as found:
            for entry in found:
                names.add(entry.name)
                if entry.is_dir(follow_symlinks=False):
                    inner.append(entry.name)
                if len(names) >= most:
                    break
    except OSError:
        pass
    return names, inner
