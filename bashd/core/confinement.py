"""Policy, mode and places to what is really applied: mounts and Landlock rules. Pure.

`plan` takes what the daemon found out (which masks exist, what a folder holds) and
returns a `Plan`: arguments for bubblewrap, rules for the launcher's Landlock layers
and the list of inodes that must stay in place. The number of mounts is bounded by the
number of rules, never by the tree.

Two runners, one plan: under bwrap the mounts do the work and Landlock stands behind
them for writes; under landlock the rules are all there is, so what is masked is
withheld by granting its siblings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from bashd.core.model import Mode

# Landlock file rights. Source: linux/landlock.h; the ABI that added them behind.
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

DEVICES: Final = (
    "/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom",
    "/dev/tty", "/dev/ptmx", "/dev/pts",
)  # fmt: skip
"""Devices any program may write to; bubblewrap's ``--dev`` makes the same set."""
NAME_RESOLUTION: Final = (
    "/run/systemd/resolve", "/run/resolvconf", "/run/NetworkManager",
    "/run/connman", "/run/netconfig",
)  # fmt: skip
"""Folders that /etc/resolv.conf points into. The folder, not the file: a bind of a
file goes stale when the file is replaced."""
LIB_IN_CELL: Final = "/run/bashd/lib"
"""Where the launcher's code stands in a bwrap cell, read-only."""


def write_rights(abi: int) -> int:
    """Return every right that changes the file system, as far as *abi* knows it."""
    rights = WRITE_FILE | _MAKE_AND_REMOVE
    for least, right in ((2, REFER), (3, TRUNCATE), (5, IOCTL_DEV)):
        if abi >= least:
            rights |= right
    return rights


@dataclass(frozen=True, slots=True)
class Places:
    """Folders of the daemon and of one session. All absolute and canonical."""

    state_dir: str
    """The daemon's; hidden from every confined command."""
    socket_dir: str
    session_dir: str
    tmp_dir: str
    var_tmp_dir: str
    output_dir: str
    """Spill files: readable in the cell at the same path, never writable."""
    lib_dir: str
    """Copy of the launcher's code."""
    void_dir: str
    """Empty folder of mode 0000 that stands in for masked folders."""
    void_file: str
    """Empty file of mode 0000 that stands in for masked files."""


@dataclass(frozen=True, slots=True)
class Found:
    """What the daemon found on the host for one plan."""

    masks: tuple[tuple[str, bool], ...]
    """Existing masked paths, canonical; True for a folder."""
    protected: tuple[tuple[str, bool], ...]
    """Existing protected metadata inside writable roots; True for a folder."""
    anchors: tuple[str, ...]
    """Folders that hold protected metadata (``.git``): bound onto themselves so that
    they cannot be moved away."""
    code: tuple[str, ...]
    """Interpreter and bashd's own code: never writable, always visible."""
    run_folders: tuple[str, ...]
    """Those of `NAME_RESOLUTION` that exist."""
    devices: tuple[str, ...] = ()
    """Granted device paths that exist."""
    sockets: tuple[str, ...] = ()
    """Granted socket paths that exist."""
    own_socket: str | None = None
    """The daemon's socket, when the policy is nested."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A cell's confinement, ready to apply."""

    bwrap: tuple[str, ...] = ()
    """Arguments up to, not including, the command; empty under landlock."""
    landlock_handled: int = 0
    landlock_allow: tuple[tuple[str, int], ...] = ()
    landlock_scoped: int = 0
    stand_ins: tuple[tuple[str, str], ...] = ()
    """(path in the cell, path on the host of what must be mounted there)."""
    nested_points: tuple[str, ...] = ()
    """Mount points below the private tmp folders, relative to the session folder,
    to be made by the peer beforehand."""
    writable: tuple[str, ...] = ()
    """What a command may write to, for messages."""
    gaps: tuple[str, ...] = field(default=())
    """Why enforcement is only partial; empty when it is full."""


def is_below(path: str, folder: str) -> bool:
    """Whether *path* is *folder* or inside it; both canonical."""
    return path == folder or folder == "/" or path.startswith(folder.rstrip("/") + "/")


def _is_below_any(path: str, folders: Iterable[str]) -> bool:
    return any(is_below(path, folder) for folder in folders)


@dataclass(slots=True)
class _Mount:
    dest: str
    args: tuple[str, ...]
    rank: int
    """Order among mounts on the same path: later wins."""


def plan_bwrap(
    *,
    mode: Mode,
    roots: tuple[str, ...],
    scratch: bool,
    places: Places,
    found: Found,
    abi: int,
    root_identity: bool,
) -> Plan:
    """Plan a cell under bubblewrap.

    Args:
        mode: A confining mode.
        roots: Writable roots, canonical: the workspace first, then the policy's.
        scratch: Whether the private /tmp is writable.
        places: The session's folders.
        found: What exists.
        abi: Landlock's ABI; 0 leaves the layers out and is reported.
        root_identity: The command runs as uid 0 (without capabilities).
    """
    writable_roots = roots if mode is Mode.WORKSPACE_WRITE else ()
    private = ("/tmp", "/var/tmp", "/run", "/dev", "/proc")  # noqa: S108 - in the cell
    hidden = (places.state_dir, places.socket_dir)
    mounts = [
        _Mount("/dev", ("--dev", "/dev"), 0),
        _Mount("/proc", ("--proc", "/proc"), 0),
        _Mount("/run", ("--perms", "0755", "--tmpfs", "/run"), 0),
        *_tmp_mounts(places, scratch=scratch),
    ]
    mounts += [
        _Mount(root, ("--bind", root, root), 1 if root != "/" else 0)
        for root in writable_roots
    ]
    if "/" not in writable_roots:
        mounts.append(_Mount("/", ("--ro-bind", "/", "/"), 0))
    for root in roots if mode is Mode.READ_ONLY else ():
        if _is_below_any(root, private):
            # Hidden by a private mount, yet it is where the command works.
            mounts.append(_Mount(root, ("--ro-bind", root, root), 1))
    for path in found.anchors if writable_roots else ():
        mounts.append(_Mount(path, ("--bind", path, path), 2))
    for path, _ in found.protected if writable_roots else ():
        mounts.append(_Mount(path, ("--ro-bind", path, path), 3))
    covering = (*private, *writable_roots, *hidden)
    mounts += [
        _Mount(path, ("--ro-bind", path, path), 4)
        for path in found.code
        if _is_below_any(path, covering)
    ]
    stand_ins = [(path, path) for path, _ in found.protected if writable_roots]
    for path, is_dir in found.masks:
        visible = not _is_below_any(path, private) or _is_below_any(path, roots)
        if not visible or _is_below_any(path, hidden):
            continue
        stand_in = places.void_dir if is_dir else places.void_file
        mounts.append(_Mount(path, ("--ro-bind", stand_in, path), 5))
        stand_ins.append((path, stand_in))
    for folder in hidden:
        if not _is_below_any(folder, private):
            mounts.append(_Mount(folder, ("--perms", "0755", "--tmpfs", folder), 6))
    late = [
        *_visible_again(places, found),
        *(_Mount(path, ("--dev-bind", path, path), 7) for path in found.devices),
    ]
    mounts += late
    args: list[str] = []
    for mount in sorted(mounts, key=lambda m: (m.dest.count("/") if m.dest != "/" else 0, m.rank)):
        args.extend(mount.args)
    for folder in ("/run", *hidden):
        if folder == "/run" or not _is_below_any(folder, private):
            args += ["--remount-ro", folder]
    allow = _bwrap_rules(writable_roots, scratch=scratch, abi=abi, root=root_identity)
    allow += [(path, write_rights(abi)) for path in found.devices]
    if roots:
        stand_ins.append((roots[0], roots[0]))
    return Plan(
        bwrap=tuple(args),
        landlock_handled=write_rights(abi) if abi else 0,
        landlock_allow=tuple(allow),
        landlock_scoped=SCOPE_ALL if abi >= 6 else 0,  # noqa: PLR2004 - ABI 6
        stand_ins=tuple(dict(stand_ins).items()),
        nested_points=_nested_points(mounts),
        writable=_writable_words(writable_roots, scratch=scratch),
        gaps=_bwrap_gaps(abi),
    )


def _tmp_mounts(places: Places, *, scratch: bool) -> list[_Mount]:
    bind = "--bind" if scratch else "--ro-bind"
    return [
        _Mount("/tmp", (bind, places.tmp_dir, "/tmp"), 0),  # noqa: S108 - in the cell
        _Mount("/var/tmp", (bind, places.var_tmp_dir, "/var/tmp"), 0),  # noqa: S108
    ]


def _visible_again(places: Places, found: Found) -> list[_Mount]:
    """Return the parts of hidden folders that a command must see."""
    mounts = [
        _Mount(path, ("--ro-bind", path, path), 7)
        for path in (*found.run_folders, places.output_dir)
    ]
    mounts.append(_Mount(LIB_IN_CELL, ("--ro-bind", places.lib_dir, LIB_IN_CELL), 7))
    mounts += [_Mount(path, ("--bind", path, path), 7) for path in found.sockets]
    if found.own_socket is not None:
        mounts.append(
            _Mount(found.own_socket, ("--bind", found.own_socket, found.own_socket), 7)
        )
    mounts.append(_Mount("/proc/sys", ("--ro-bind", "/proc/sys", "/proc/sys"), 7))
    return mounts


def _bwrap_rules(
    roots: tuple[str, ...], *, scratch: bool, abi: int, root: bool
) -> list[tuple[str, int]]:
    write = write_rights(abi)
    rules = [(path, write) for path in roots]
    if scratch:
        rules += [("/tmp", write), ("/var/tmp", write)]  # noqa: S108 - in the cell
    # The cell's /dev is a tmpfs with the harmless devices and a private /dev/shm.
    rules += [("/dev", WRITE_FILE | IOCTL_DEV | TRUNCATE), ("/dev/shm", write)]  # noqa: S108
    if not root:
        # Own entries only (oom_score_adj, uid_map…): the files' owners see to it.
        # Uid 0 owns the kernel's knobs, so it may write nowhere in /proc.
        rules.append(("/proc", WRITE_FILE))
    return rules


def _nested_points(mounts: list[_Mount]) -> tuple[str, ...]:
    points: list[str] = []
    for mount in mounts:
        for prefix, name in (("/tmp/", "tmp"), ("/var/tmp/", "var-tmp")):  # noqa: S108
            if mount.dest.startswith(prefix):
                points.append(f"{name}/{mount.dest[len(prefix) :]}")
    return tuple(points)


def _writable_words(roots: tuple[str, ...], *, scratch: bool) -> tuple[str, ...]:
    return (*roots, "/tmp") if scratch else roots  # noqa: S108 - in the cell


def _bwrap_gaps(abi: int) -> tuple[str, ...]:
    if not abi:
        return ("no Landlock: one wall (mounts) instead of two",)
    if abi < 6:  # noqa: PLR2004 - ABI 6
        return ("abstract Unix sockets of the host's network are reachable before ABI 6",)
    return ()


ListFolder = Callable[[str], list[tuple[str, bool]]]
"""Returns the entries of a folder as (name, is_symlink); empty when unreadable."""


def grant_all_but(masks: Iterable[str], list_folder: ListFolder) -> list[str]:
    """Return paths that together cover the whole tree except *masks*.

    Landlock cannot subtract, so every sibling on the way down to a mask is granted.
    The result is bounded by the entries of the masks' parents. Symlinks are left
    out: what they lead to is decided where it lies.
    """
    withheld = set(masks)
    parents = {"/"} if withheld else set()
    for mask in withheld:
        parts = mask.strip("/").split("/")
        parents |= {"/" + "/".join(parts[:n]) for n in range(len(parts))}
    if not withheld:
        return ["/"]
    granted: list[str] = []
    for parent in sorted(parents):
        if _is_below_any(parent, withheld):
            continue
        for name, is_symlink in list_folder(parent):
            path = parent.rstrip("/") + "/" + name
            if not is_symlink and path not in withheld and path not in parents:
                granted.append(path)
    return granted


LANDLOCK_GAPS: Final = (
    "metadata writes (chmod, chown, utimes, setxattr) outside the workspace are not"
    " mediated by Landlock",
    "protected metadata inside a writable root cannot be subtracted",
    "path-based Unix sockets are only stopped by refusing socket(AF_UNIX)",
)


def plan_landlock(
    *,
    mode: Mode,
    roots: tuple[str, ...],
    scratch: bool,
    places: Places,
    found: Found,
    abi: int,
    list_folder: ListFolder,
) -> Plan:
    """Plan a cell whose only file wall is Landlock; always partial."""
    write = write_rights(abi)
    writable_roots = roots if mode is Mode.WORKSPACE_WRITE else ()
    allow: list[tuple[str, int]] = [(path, write | READ) for path in writable_roots]
    masks = [path for path, _ in found.masks if not _is_below_any(path, writable_roots)]
    masks.append(places.state_dir)
    if places.socket_dir != places.state_dir:
        masks.append(places.socket_dir)
    allow += [(path, READ) for path in grant_all_but(masks, list_folder)]
    allow += [(path, READ) for path in (*found.code, places.lib_dir, places.output_dir)]
    # Names may be listed everywhere; contents of what is masked stay closed.
    allow.append(("/", READ_DIR))
    if scratch:
        allow += [(places.tmp_dir, write | READ), (places.var_tmp_dir, write | READ)]
    if mode is Mode.WORKSPACE_WRITE:
        allow.append(("/dev/shm", write | READ))  # noqa: S108 - semaphores need it
    device_rights = WRITE_FILE | READ_FILE | (IOCTL_DEV & write) | (TRUNCATE & write)
    allow += [(path, device_rights) for path in (*DEVICES, *found.devices)]
    gaps = list(LANDLOCK_GAPS)
    if abi < 6:  # noqa: PLR2004 - ABI 6
        gaps.append("signals and abstract sockets are not scoped before ABI 6")
    if abi < 3:  # noqa: PLR2004 - ABI 3
        gaps.append("truncation is not mediated before ABI 3")
    return Plan(
        landlock_handled=write | READ,
        landlock_allow=tuple(allow),
        landlock_scoped=SCOPE_ALL if abi >= 6 else 0,  # noqa: PLR2004 - ABI 6
        writable=(*writable_roots, places.tmp_dir) if scratch else writable_roots,
        gaps=tuple(gaps),
    )
