"""Follows the links of a path that somebody else has named, wherever they lead.

`os.path.realpath` raises where a link may not be read, and some of /proc's may not: the
folder, the root and the namespaces of other users' processes. Whoever can put a name
where the daemon looks (into a link, into git's files, on stderr, as the name of a
socket) could stop it by that. What cannot be followed is where it leads itself.
"""

from __future__ import annotations

import os
from typing import Final

MAX_LINKS: Final = 40
"""As many as the kernel follows. Source: path_resolution(7)."""


def real_path(path: str) -> str:
    """Return the canonical form of an absolute path, as far as it can be known."""
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):
        return follow(path)[0]


def follow(path: str) -> tuple[str, list[str]]:
    """Return where an absolute path leads, and each link on the way, where it lies.

    A link that may not be read stays, as does the one after `MAX_LINKS` and all behind.
    """
    real, rest = "/", path.split("/")[::-1]
    links: list[str] = []
    while rest:
        name = rest.pop()
        if name == "..":
            real = os.path.dirname(real)  # noqa: PTH120 - paths are text here
        if name in ("", ".", ".."):
            continue
        here = f"{real.rstrip('/')}/{name}"
        target = None if len(links) > MAX_LINKS else _target(here)
        if target is not None:
            links.append(here)
        if target is None or len(links) > MAX_LINKS:
            real = here
            continue
        real = "/" if target.startswith("/") else real
        rest += target.split("/")[::-1]
    return real, links


def _target(path: str) -> str | None:
    """Return what a link holds; None if it is none, or is closed, or cannot be."""
    try:
        return os.readlink(path)  # noqa: PTH115 - paths are text here
    except (OSError, ValueError):
        return None
