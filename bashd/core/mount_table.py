"""The kernel's tables of mounts and of Unix sockets as values. Pure.

A masked file system object has as many names as there are mounts that show it. What
the mount table tells is enough to compute them: the device, the part of the file
system that is mounted, and where. Names by hard links are not in any table.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from bashd.core.paths import is_below

_OCTAL: Final = re.compile(r"\\([0-7]{3})")
_FIELDS: Final = 6
_SOCKET_FIELDS: Final = 8


class MountEntry(NamedTuple):
    """One mount. Source: proc_pid_mountinfo(5), fields 3, 4 and 5."""

    device: str
    """``major:minor``."""
    root: str
    """What of the file system is mounted."""
    point: str
    """Where."""


def parse_mountinfo(text: str) -> tuple[MountEntry, ...]:
    """Return the mounts in the kernel's order: a later one covers an earlier one."""
    found: list[MountEntry] = []
    for line in text.splitlines():
        fields = line.split(" ", _FIELDS)
        if len(fields) >= _FIELDS:
            found.append(MountEntry(fields[2], *map(_unescape, fields[3:5])))
    return tuple(found)


def _unescape(field: str) -> str:
    # Blanks and backslashes are written as three octal digits. The bytes of a name
    # are what they are, so this must not go through a wider character.
    return _OCTAL.sub(lambda found: chr(int(found[1], 8)), field)


def mount_of(path: str, table: tuple[MountEntry, ...]) -> MountEntry | None:
    """Return the mount that a canonical path lies on."""
    best: MountEntry | None = None
    for entry in table:
        if is_below(path, entry.point) and (
            best is None or len(entry.point) >= len(best.point)
        ):
            best = entry
    return best


def other_names(path: str, table: tuple[MountEntry, ...]) -> tuple[str, ...]:
    """Return further paths at which other mounts show *path*, or a part of it.

    Args:
        path: Canonical.
        table: As the kernel has it now.

    Returns:
        Paths that may be covered by yet another mount; the caller checks what is there.
    """
    own = mount_of(path, table)
    if own is None:
        return ()
    inside = _join(own.root, path[len(own.point.rstrip("/")) :])
    found: dict[str, None] = {}
    for entry in table:
        if entry.device != own.device:
            continue
        if is_below(inside, entry.root):
            found[_join(entry.point, inside[len(entry.root.rstrip("/")) :])] = None
        elif is_below(entry.root, inside):
            found[entry.point] = None
    found.pop(path, None)
    return tuple(name for name in found if not is_below(name, path))


def _join(folder: str, rest: str) -> str:
    return f"{folder.rstrip('/')}/{rest.strip('/')}".rstrip("/") or "/"


def bound_sockets(text: str) -> tuple[str, ...]:
    """Return the absolute paths of /proc/net/unix, each once.

    Source: proc_net_unix(5) as unix_seq_show() prints it; abstract names start with @.
    """
    found: dict[str, None] = {}
    for line in text.splitlines()[1:]:
        fields = line.split(None, _SOCKET_FIELDS - 1)
        if len(fields) == _SOCKET_FIELDS and fields[-1].startswith("/"):
            found[fields[-1]] = None
    return tuple(found)
