"""Whether a root daemon's own code is root's alone.

Whoever can write to the interpreter, to a module or to a folder on the way there is
root as soon as the daemon starts again, whatever the cells forbid. So a root daemon
looks first, and refuses.
"""

from __future__ import annotations

import importlib.util
import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bashd.core.errors import HostError

if TYPE_CHECKING:
    from collections.abc import Iterator

_IMPORTED_LATER: Final = (
    "_prctl",
    "landlock",
    "prctl",
    "psutil",
    "pyroute2",
    "pyseccomp",
)
_MAX_LINKS: Final = 40
"""As the kernel follows; see path_resolution(7)."""
_ACL: Final = "system.posix_acl_access"


def check_own_code() -> None:
    """Check everything this process runs, or may import later.

    Raises:
        HostError: Somebody but root can change it; names the place and the fix.
    """
    seen: set[str] = set()
    for path in _own_code():
        offence = find_offence(path, seen)
        if offence is not None:
            raise HostError(f"refusing to run as root: {offence}")
    for folder in sys.path:
        # What anybody may add to is no place to import from, sticky or not.
        found = Path(folder or ".")
        if found.is_dir() and found.stat().st_mode & stat.S_IWOTH:
            raise HostError(
                f"refusing to run as root: modules are imported from {found.resolve()},"
                " which everybody can write to; start elsewhere, or with python3 -P"
            )


def _own_code() -> Iterator[str]:
    yield sys.executable
    yield from (os.path.realpath(entry or ".") for entry in sys.path)
    tops = {name.partition(".")[0] for name in sys.modules} - sys.stdlib_module_names
    for top in sorted(tops | set(_IMPORTED_LATER)):
        yield from _tree_of(top)
    for module in list(sys.modules.values()):
        for attribute in ("__file__", "__cached__"):
            path = getattr(module, attribute, None)
            if isinstance(path, str) and os.path.lexists(path):
                yield path


def _tree_of(package: str) -> Iterator[str]:
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:
        return  # __main__ has none
    for folder in (spec and spec.submodule_search_locations) or ():
        for at, folders, files in os.walk(folder):
            yield at
            yield from (f"{at}/{name}" for name in (*folders, *files))


def find_offence(path: str, seen: set[str] | None = None) -> str | None:
    """Return how somebody but root could change what *path* leads to; None if nobody.

    Args:
        path: Absolute; links are followed step by step, because whoever can replace
            one of them decides where it leads.
        seen: Places that were checked before; added to.
    """
    seen = set() if seen is None else seen
    # The usual case: one more file in a folder that was looked at.
    at, _, name = path.rpartition("/")
    rest = [name] if at in seen else _parts(path)
    at = at if at in seen else ""
    links = 0
    while True:
        offence = None if (at or "/") in seen else _offence_at(at or "/")
        if offence is not None:
            return offence
        seen.add(at or "/")
        if not rest:
            return None
        name, rest = rest[0], rest[1:]
        if name == "..":
            at = at.rpartition("/")[0]
            continue
        target = _link_at(f"{at}/{name}")
        if target is None:
            at = f"{at}/{name}"
            continue
        links += 1
        offence = _offence_at(f"{at}/{name}")
        if offence is not None or links > _MAX_LINKS:
            return offence or f"{path} leads through too many links"
        at = "" if target.startswith("/") else at
        rest = [*_parts(target), *rest]


def _link_at(place: str) -> str | None:
    try:
        return os.readlink(place)  # noqa: PTH115 - thousands of times
    except OSError:
        return None


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _offence_at(place: str) -> str | None:
    try:
        found = os.lstat(place)
    except FileNotFoundError:
        return None
    mode = found.st_mode
    if found.st_uid != 0:
        return f"{place} belongs to uid {found.st_uid}; chown root {place}"
    if stat.S_ISLNK(mode) or (stat.S_ISDIR(mode) and mode & stat.S_ISVTX):
        # A link has no mode of its own. To a sticky folder others may add, but they
        # cannot replace what is root's.
        return None
    if mode & stat.S_IWOTH:
        return f"everybody can write to {place}; chmod o-w {place}"
    if mode & stat.S_IWGRP and (found.st_gid != 0 or _has_acl(place)):
        return f"group {found.st_gid} can write to {place}; chmod g-w {place}"
    return None


def _has_acl(place: str) -> bool:
    """Whether the group bits are an access list's mask, for anybody it names."""
    try:
        return bool(os.getxattr(place, _ACL))
    except OSError:
        return False
