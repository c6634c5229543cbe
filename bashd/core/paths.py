"""How canonical paths lie to one another. Pure, and nothing but text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def is_below(path: str, folder: str) -> bool:
    """Whether *path* is *folder* or inside it; both canonical."""
    return folder in (path, "/") or path.startswith(folder.rstrip("/") + "/")


def is_below_any(path: str, folders: Iterable[str]) -> bool:
    """Whether *path* is one of *folders* or inside one."""
    return any(is_below(path, folder) for folder in folders)


def folders_between(path: str, root: str) -> Iterator[str]:
    """Yield the folders on the way from *root* to *path*, both left out, top first."""
    if not is_below(path, root) or path == root:
        return
    at = len(root.rstrip("/"))
    while (at := path.find("/", at + 1)) > 0:
        yield path[:at]
