"""Landlock's file rights, and the rules of both runners. Pure.

Under bubblewrap the mounts do the work and these rules stand behind them for writes;
under the landlock runner they are all there is, so what is masked is withheld by
granting its siblings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from bashd.core.paths import is_below_any

# Source: linux/landlock.h; the ABI that added them behind.
EXECUTE: Final = 1 << 0
WRITE_FILE: Final = 1 << 1
READ_FILE: Final = 1 << 2
READ_DIR: Final = 1 << 3
_MAKE_AND_REMOVE: Final = 0x1FF << 4  # REMOVE_DIR (bit 4) to MAKE_SYM (bit 12)
REFER: Final = 1 << 13  # ABI 2
TRUNCATE: Final = 1 << 14  # ABI 3
IOCTL_DEV: Final = 1 << 15  # ABI 5
READ: Final = EXECUTE | READ_FILE | READ_DIR
SCOPE_ALL: Final = 3  # abstract sockets and signals, ABI 6
SCOPE_ABI: Final = 6
TRUNCATE_ABI: Final = 3

DEVICES: Final = (
    "/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom",
    "/dev/tty", "/dev/ptmx", "/dev/pts",
)  # fmt: skip
"""Devices any program may write to; bubblewrap's ``--dev`` makes the same set."""

Rule = tuple[str, int]
"""A path, and the rights granted on it and on everything beneath it."""

ListFolder = Callable[[str], list[tuple[str, bool]]]
"""Returns the entries of a folder as (name, is_symlink); empty when unreadable."""


def write_rights(abi: int) -> int:
    """Return every right that changes the file system, as far as *abi* knows it."""
    rights = WRITE_FILE | _MAKE_AND_REMOVE
    for least, right in ((2, REFER), (TRUNCATE_ABI, TRUNCATE), (5, IOCTL_DEV)):
        if abi >= least:
            rights |= right
    return rights


def scopes(abi: int) -> int:
    """Return the scopes that *abi* knows."""
    return SCOPE_ALL if abi >= SCOPE_ABI else 0


def rules_behind_mounts(
    roots: Iterable[str],
    devices: Iterable[str],
    *,
    scratch: bool,
    abi: int,
    root_identity: bool,
) -> tuple[Rule, ...]:
    """Return what a command in a bwrap cell may write; reading is the mounts' matter.

    Args:
        roots: Writable folders.
        devices: Granted device paths.
        scratch: Whether the private /tmp is writable.
        abi: Landlock's.
        root_identity: The command runs as uid 0.
    """
    write = write_rights(abi)
    rules = [(path, write) for path in roots]
    if scratch:
        rules += [("/tmp", write), ("/var/tmp", write)]  # noqa: S108 - in the cell
    # The cell's /dev is a tmpfs with the harmless devices and a private /dev/shm.
    rules += [("/dev", WRITE_FILE | IOCTL_DEV | TRUNCATE), ("/dev/shm", write)]  # noqa: S108
    if not root_identity:
        # Own entries only (oom_score_adj, uid_map…): the files' owners see to it.
        # Uid 0 owns the kernel's knobs, so it may write nowhere in /proc.
        rules.append(("/proc", WRITE_FILE))
    return (*rules, *((path, write) for path in devices))


def rules_alone(
    roots: Iterable[str],
    visible: Iterable[str],
    masks: Iterable[str],
    devices: Iterable[str],
    *,
    scratch: Iterable[str],
    abi: int,
    list_folder: ListFolder,
) -> tuple[Rule, ...]:
    """Return the rules of a cell that has no other file wall.

    Args:
        roots: Writable folders.
        visible: Paths to be read whatever masks say: interpreter, output files.
        masks: Paths whose contents stay closed; those below *roots* cannot be.
        devices: Granted device paths.
        scratch: Private folders that are writable.
        abi: Landlock's.
        list_folder: Lists a folder of the host.
    """
    write = write_rights(abi)
    roots = tuple(roots)
    rules = [(path, write | READ) for path in roots]
    # To read a device can be to read a whole disk, masked files and all, and modes do
    # not keep uid 0 from it, nor the members of groups like disk, kvm or video.
    closed = [path for path in (*masks, "/dev") if not is_below_any(path, roots)]
    rules += [(path, READ) for path in grant_all_but(closed, list_folder)]
    rules += [(path, READ) for path in (*visible, "/dev/shm")]  # noqa: S108
    # Names may be listed everywhere; contents of what is masked stay closed.
    rules.append(("/", READ_DIR))
    rules += [(path, write | READ) for path in scratch]
    on_device = WRITE_FILE | READ_FILE | READ_DIR | (write & (IOCTL_DEV | TRUNCATE))
    return (*rules, *((path, on_device) for path in (*DEVICES, *devices)))


def grant_all_but(masks: Iterable[str], list_folder: ListFolder) -> list[str]:
    """Return paths that together cover the whole tree except *masks*.

    Landlock cannot subtract, so every sibling on the way down to a mask is granted.
    The result is bounded by the entries of the masks' parents. Symlinks are left
    out: what they lead to is decided where it lies.
    """
    withheld = set(masks)
    if not withheld:
        return ["/"]
    parents = {"/"}
    for mask in withheld:
        parts = mask.strip("/").split("/")
        parents |= {"/" + "/".join(parts[:n]) for n in range(len(parts))}
    granted: list[str] = []
    for parent in sorted(parents):
        if is_below_any(parent, withheld):
            continue
        for name, is_symlink in list_folder(parent):
            path = parent.rstrip("/") + "/" + name
            if not is_symlink and path not in withheld and path not in parents:
                granted.append(path)
    return granted
