"""Writable roots besides the workspace: where they really are, and whether they may be.

A policy names them before anybody knows what is there. Here they become canonical, and
only then are they compared with what bounds them. Run as the peer.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable

from bashd.core.paths import is_below, is_below_any
from bashd.daemon.real_path import MAX_LINKS, follow, real_path


def resolve_roots(
    workspace: str, wanted: Iterable[str], bounds: tuple[str, ...] | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return (roots, notes): the workspace first, and why a wanted root is left out.

    Args:
        workspace: Canonical.
        wanted: The policy's extra roots, absolute.
        bounds: Folders that an administrator confines them to; None: nothing does.
    """
    roots, notes = [workspace], list[str]()
    within = None if bounds is None else tuple(real_path(b) for b in bounds)
    for path in wanted:
        real, why_not = _resolve(path, [workspace, *wanted])
        if not why_not and within is not None and not is_below_any(real, within):
            why_not = f"leads to {real}, beyond the administrator's ceiling"
        if why_not:
            notes.append(f"{path} is not writable: it {why_not}")
        elif real not in roots:
            roots.append(real)
    return tuple(roots), tuple(notes)


def _resolve(path: str, writable: list[str]) -> tuple[str, str]:
    """Return (canonical path, "") or ("", why it cannot be a root)."""
    real, links = follow(path)
    if len(links) > MAX_LINKS:
        real = path  # of which the kernel says the same
    planted = next(
        (link for link in links if any(_inside(link, root) for root in writable)), None
    )
    if planted is not None:
        # Commands could point it anywhere, and the next cell would follow.
        return "", f"is reached by a link that commands may change, {planted}"
    try:
        info = os.stat(real)  # noqa: PTH116 - paths are text here
    except OSError as error:
        return "", f"cannot be used ({error.strerror})"
    if not stat.S_ISDIR(info.st_mode):
        return "", "is no folder"
    return real, ""


def _inside(link: str, root: str) -> bool:
    return link != root and is_below(link, real_path(root))
