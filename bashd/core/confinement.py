"""Policy, mode and places to what is really applied: mounts and Landlock rules. Pure.

`plan_bwrap` and `plan_landlock` take what the daemon found out (which masks exist,
what a folder holds) and return a `Plan`: arguments for bubblewrap, rules for the
launcher's Landlock layers and the list of inodes that must stay in place. The number
of mounts is bounded by the number of rules, never by the tree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bashd.core import landlock_rules
from bashd.core.landlock_rules import ListFolder, Rule
from bashd.core.model import Mode
from bashd.core.paths import folders_between, is_below, is_below_any

__all__ = ["Found", "Places", "Plan", "is_below", "plan_bwrap", "plan_landlock"]

NAME_RESOLUTION: Final = (
    "/run/systemd/resolve", "/run/resolvconf", "/run/NetworkManager",
    "/run/connman", "/run/netconfig",
)  # fmt: skip
"""Folders that /etc/resolv.conf points into. The folder, not the file: a bind of a
file goes stale when the file is replaced."""
LIB_IN_CELL: Final = "/run/bashd/lib"
"""Where the launcher's code stands in a bwrap cell, read-only."""
PRIVATE: Final = ("/tmp", "/var/tmp", "/run", "/dev", "/proc")  # noqa: S108 - in the cell
"""Folders a bwrap cell has of its own: nothing of the host's is in them."""


@dataclass(frozen=True, slots=True)
class Places:
    """Folders of the daemon and of one session. All absolute and canonical."""

    state_dir: str
    """The daemon's; hidden from every confined command."""
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
    socket: str
    """The daemon's."""
    socket_dir: str | None = None
    """The socket's folder where it is the daemon's own and can be hidden whole."""
    socket_files: tuple[str, ...] = ()
    """Otherwise (the socket lies among others' files): what has to be masked there."""
    home_dir: str = ""
    """Stands in for the caller's home where the policy makes that private."""

    @property
    def hidden(self) -> tuple[str, ...]:
        """The daemon's folders, each replaced by an empty one."""
        own = (self.state_dir, self.socket_dir or self.state_dir)
        return tuple(dict.fromkeys(own))


@dataclass(frozen=True, slots=True)
class Found:
    """What the daemon found on the host for one plan. Every path is canonical."""

    roots: tuple[str, ...]
    """Writable under workspace-write; the workspace first."""
    masks: tuple[tuple[str, bool], ...] = ()
    """Existing masked paths, under every name; True for a folder."""
    deputies: tuple[str, ...] = ()
    """Unix sockets of others that lie where a command could connect to them."""
    more_deputies: bool = False
    """There are others besides, which nothing covers."""
    protected: tuple[tuple[str, bool], ...] = ()
    """Existing protected metadata inside the roots; True for a folder."""
    anchors: tuple[str, ...] = ()
    """Folders that hold protected metadata (``.git``): bound onto themselves so that
    they cannot be moved away."""
    code: tuple[str, ...] = ()
    """Interpreter and bashd's own code: never writable, always visible."""
    run_folders: tuple[str, ...] = ()
    """Those of `NAME_RESOLUTION` that exist."""
    devices: tuple[str, ...] = ()
    """Granted device paths that exist."""
    sockets: tuple[str, ...] = ()
    """Granted sockets that exist, agents' included."""
    nested: bool = False
    """The daemon's own socket is to be there."""
    home: str | None = None
    """The caller's home, where the policy makes it private and it can be."""
    visible: tuple[str, ...] = ()
    """What of it is there all the same; the roots come besides."""
    notes: tuple[str, ...] = ()
    """What the policy asks for and cannot have here, one clause each."""

    @property
    def private(self) -> tuple[str, ...]:
        """Folders of which a bwrap cell has its own."""
        return PRIVATE if self.home is None else (*PRIVATE, self.home)

    def is_own(self, path: str, places: Places) -> bool:
        """Whether a bwrap cell has something of its own there, and not the host's.

        Args:
            path: Canonical.
            places: The session's.
        """
        shown = (*self.roots, *self.visible, *self.run_folders, *self.devices)
        return is_below_any(path, self.private) and not is_below_any(
            path, (*shown, *self.code, places.output_dir)
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """A cell's confinement, ready to apply."""

    bwrap: tuple[str, ...] = ()
    """Arguments up to, not including, the command; empty under landlock."""
    landlock_handled: int = 0
    landlock_allow: tuple[Rule, ...] = ()
    landlock_scoped: int = 0
    stand_ins: tuple[tuple[str, str, bool], ...] = ()
    """(path in the cell, path on the host of what must be mounted there, and whether
    that mount is read-only)."""
    nested_folders: tuple[str, ...] = ()
    """Mount points below the private tmp folders, relative to the session folder,
    to be made by the peer beforehand."""
    nested_files: tuple[str, ...] = ()
    """The same, for mounts of single files."""
    writable: tuple[str, ...] = ()
    """What a command may write to, for messages."""
    gaps: tuple[str, ...] = ()
    """Why enforcement is only partial; empty when it is full."""
    notes: tuple[str, ...] = ()
    """What the policy asks for and does not get; enforcement is none the worse."""


@dataclass(slots=True)
class _Mount:
    dest: str
    args: tuple[str, ...]
    rank: int
    """Order among mounts on the same path: later wins."""
    is_file: bool = False

    @property
    def order(self) -> tuple[int, int]:
        """Parents before what lies in them."""
        return (0 if self.dest == "/" else self.dest.count("/"), self.rank)


def plan_bwrap(
    *,
    mode: Mode,
    scratch: bool,
    places: Places,
    found: Found,
    abi: int,
    root_identity: bool,
    namespaces: bool = False,
    shm_bytes: int | None = None,
) -> Plan:
    """Plan a cell under bubblewrap.

    Args:
        mode: A confining mode.
        scratch: Whether the private /tmp is writable.
        places: The session's folders.
        found: What exists.
        abi: Landlock's ABI; 0 leaves the layers out and is reported.
        root_identity: The command runs as uid 0 (without capabilities).
        namespaces: Commands may make namespaces and mounts of their own in them.
        shm_bytes: Size of /dev/shm; None leaves it to the kernel.
    """
    writes = mode is Mode.WORKSPACE_WRITE
    roots = found.roots if writes else ()
    mounts = _base(places, roots, scratch=scratch, shm_bytes=shm_bytes)
    mounts += _home(places, found, scratch=scratch)
    mounts += _read_only_roots(found, found.roots if not writes else ())
    if writes:
        mounts += _metadata(found, places)
    mounts += [
        _read_only(path, 4)
        for path in found.code
        if is_below_any(path, (*found.private, *roots, *places.hidden))
    ]
    masks = _masks(places, found)
    mounts += masks
    mounts += _hidden(places, found)
    mounts += _visible_again(places, found)
    mounts += _ways(mounts)
    mounts.sort(key=lambda mount: mount.order)
    args = [arg for mount in mounts for arg in mount.args]
    for folder in ("/run", *places.hidden, *_emptied(found)):
        if folder == "/run" or not is_below_any(folder, found.private):
            args += ["--remount-ro", folder]
    # A process in any Landlock domain with file rules may not mount, whatever its
    # namespaces. Uid 0 keeps the layer all the same: it owns the kernel's knobs.
    layered = bool(abi) and not (namespaces and not root_identity)
    return Plan(
        bwrap=tuple(args),
        landlock_handled=landlock_rules.write_rights(abi) if layered else 0,
        landlock_allow=landlock_rules.rules_behind_mounts(
            (*roots, found.home) if found.home and scratch else roots,
            found.devices,
            scratch=scratch,
            abi=abi,
            root_identity=root_identity,
        )
        if layered
        else (),
        landlock_scoped=landlock_rules.scopes(abi),
        stand_ins=_stand_ins(masks, found, places, writes=writes),
        nested_folders=_nested(mounts, found.home, files=False),
        nested_files=_nested(mounts, found.home, files=True),
        writable=(*roots, "/tmp") if scratch else roots,  # noqa: S108 - in the cell
        gaps=_bwrap_gaps(abi, found, layered=layered),
        notes=found.notes,
    )


def _base(
    places: Places, roots: tuple[str, ...], *, scratch: bool, shm_bytes: int | None
) -> list[_Mount]:
    bind = "--bind" if scratch else "--ro-bind"
    size = () if shm_bytes is None else ("--size", str(shm_bytes))
    mounts = [
        _Mount("/dev", ("--dev", "/dev"), 0),
        # Bubblewrap's own belongs to whoever starts it: to root, not to a root
        # daemon's peer, whose semaphores would fail.
        _Mount("/dev/shm", (*size, "--perms", "1777", "--tmpfs", "/dev/shm"), 0),  # noqa: S108
        _Mount("/proc", ("--proc", "/proc"), 0),
        _Mount("/run", ("--perms", "0755", "--tmpfs", "/run"), 0),
        _Mount("/tmp", (bind, places.tmp_dir, "/tmp"), 0),  # noqa: S108 - in the cell
        _Mount("/var/tmp", (bind, places.var_tmp_dir, "/var/tmp"), 0),  # noqa: S108
    ]
    mounts += [
        _Mount(root, ("--bind", root, root), 1 if root != "/" else 0) for root in roots
    ]
    if "/" not in roots:
        mounts.append(_read_only("/", 0))
    return mounts


def _home(places: Places, found: Found, *, scratch: bool) -> list[_Mount]:
    if found.home is None:
        return []
    bind = "--bind" if scratch else "--ro-bind"
    own = _Mount(found.home, (bind, places.home_dir, found.home), 0)
    return [own, *(_read_only(path, 1) for path in found.visible)]


def _read_only(path: str, rank: int, *, is_file: bool = False) -> _Mount:
    return _Mount(path, ("--ro-bind", path, path), rank, is_file)


def _read_only_roots(found: Found, roots: tuple[str, ...]) -> list[_Mount]:
    """Show the folder a command works in, although a private mount is above it."""
    return [_read_only(root, 1) for root in roots if is_below_any(root, found.private)]


def _metadata(found: Found, places: Places) -> list[_Mount]:
    held = dict.fromkeys(found.anchors)
    for hidden in (*places.hidden, *places.socket_files, *(p for p, _ in found.masks)):
        # What hides them is a mount; it would follow a parent that is moved away.
        for root in found.roots:
            held.update(dict.fromkeys(folders_between(hidden, root)))
    mounts = [_Mount(path, ("--bind", path, path), 2) for path in held]
    return mounts + [
        _read_only(path, 3, is_file=not is_dir) for path, is_dir in found.protected
    ]


def _masks(places: Places, found: Found) -> list[_Mount]:
    """Put something empty over what must not be read or talked to."""
    wanted = dict(found.masks)
    wanted.update(dict.fromkeys(found.deputies, False))
    wanted.update(dict.fromkeys(places.socket_files, False))
    if found.nested:
        wanted.pop(places.socket, None)
    emptied = _emptied(found)
    seen = (*found.roots, *found.visible)
    mounts: list[_Mount] = []
    for path, is_dir in wanted.items():
        unseen = is_below_any(path, found.private) and not is_below_any(path, seen)
        if unseen or is_below_any(path, places.hidden) or path in found.sockets:
            continue
        if path in emptied:
            mounts.append(_Mount(path, ("--perms", "0755", "--tmpfs", path), 5))
            continue
        stand_in = places.void_dir if is_dir else places.void_file
        mounts.append(_Mount(path, ("--ro-bind", stand_in, path), 5, not is_dir))
    return mounts


def _emptied(found: Found) -> tuple[str, ...]:
    """Return masked folders that must hold one granted socket: those become tmpfs."""
    return tuple(
        path
        for path, is_dir in found.masks
        if is_dir and any(is_below(socket, path) for socket in found.sockets)
    )


def _hidden(places: Places, found: Found) -> list[_Mount]:
    mounts: list[_Mount] = []
    for folder in places.hidden:
        if is_below_any(folder, found.private):
            continue
        mounts.append(_Mount(folder, ("--perms", "0755", "--tmpfs", folder), 6))
    return mounts


def _visible_again(places: Places, found: Found) -> list[_Mount]:
    """Return the parts of hidden folders that a command must see."""
    mounts = [_read_only(path, 7) for path in (*found.run_folders, places.output_dir)]
    mounts.append(_Mount(LIB_IN_CELL, ("--ro-bind", places.lib_dir, LIB_IN_CELL), 7))
    sockets = (*found.sockets, places.socket) if found.nested else found.sockets
    mounts += [_Mount(path, ("--bind", path, path), 7, True) for path in sockets]  # noqa: FBT003
    mounts.append(_read_only("/proc/sys", 7))
    mounts += [_Mount(path, ("--dev-bind", path, path), 7) for path in found.devices]
    return mounts


def _ways(mounts: list[_Mount]) -> list[_Mount]:
    """Return the folders on the way to what stands in folders that the cell makes.

    Bubblewrap makes them for root alone; a root daemon's peer has to pass through.
    """
    made = ["/dev", *(mount.dest for mount in mounts if "--tmpfs" in mount.args)]
    ways = dict.fromkeys(
        path
        for mount in mounts
        for own in made
        for path in folders_between(mount.dest, own)
    )
    taken = {mount.dest for mount in mounts}
    return [
        _Mount(path, ("--perms", "0755", "--dir", path), 1)
        for path in ways
        if path not in taken
    ]


def _stand_ins(
    masks: list[_Mount], found: Found, places: Places, *, writes: bool
) -> tuple[tuple[str, str, bool], ...]:
    """Return what must still be mounted whenever a command starts.

    Protected files are not among them: git and editors on the host replace theirs all
    the time, and the check after the command is their second line.
    """
    expected = {
        mount.dest: (mount.args[1], True)
        for mount in masks
        if mount.args[0] == "--ro-bind" and mount.dest not in found.deputies
    }
    if writes:
        expected |= {path: (path, True) for path, is_dir in found.protected if is_dir}
    expected[found.roots[0]] = (found.roots[0], not writes)
    for path in tuple(expected):
        if is_below_any(path, places.hidden):
            del expected[path]
    return tuple((path, *what) for path, what in expected.items())


def _nested(mounts: list[_Mount], home: str | None, *, files: bool) -> tuple[str, ...]:
    own = [("/tmp/", "tmp"), ("/var/tmp/", "var-tmp")]  # noqa: S108 - in the cell
    if home is not None:
        own.append((f"{home}/", "home"))
    points: list[str] = []
    for mount in mounts:
        for prefix, name in own:
            if mount.is_file is files and mount.dest.startswith(prefix):
                points.append(f"{name}/{mount.dest[len(prefix) :]}")
    return tuple(points)


def _bwrap_gaps(abi: int, found: Found, *, layered: bool) -> tuple[str, ...]:
    gaps: list[str] = []
    if found.more_deputies:
        gaps.append("more Unix sockets of others are in sight than can be covered")
    if not abi:
        gaps.append("no Landlock: one wall (mounts) instead of two")
    elif not layered:
        gaps.append("namespaces are allowed: one wall (mounts) instead of two")
    if abi < landlock_rules.SCOPE_ABI:
        gaps.append(
            "abstract Unix sockets of the host's network are reachable before ABI 6"
        )
    return tuple(gaps)


LANDLOCK_GAPS: Final[tuple[str, ...]] = (
    "metadata writes (chmod, chown, utimes, setxattr) outside the workspace are not"
    " mediated by Landlock",
    "protected metadata inside a writable root is only checked after each command",
    "/tmp and /dev/shm are the host's: what others leave there can be read",  # noqa: S108
    "all processes of the host are listed, with their command lines",
    "the caller's other terminals can be read from and written to",
    "every Unix socket is refused, or every one is open: sockets.unix decides",
)
"""What no kernel of today lets this runner do; `bashd doctor` lists it."""


def plan_landlock(
    *,
    mode: Mode,
    scratch: bool,
    places: Places,
    found: Found,
    abi: int,
    list_folder: ListFolder,
    unix_sockets: bool = False,
) -> Plan:
    """Plan a cell whose only file wall is Landlock; always partial.

    Args:
        mode: A confining mode.
        scratch: Whether TMPDIR is writable.
        places: The session's folders.
        found: What exists.
        abi: Landlock's ABI, at least 1.
        list_folder: Lists a folder of the host.
        unix_sockets: The policy opens ``socket(AF_UNIX)``.
    """
    writes = mode is Mode.WORKSPACE_WRITE
    roots = found.roots if writes else ()
    private = (places.tmp_dir, places.var_tmp_dir) if scratch else ()
    shared = ("/dev/shm",) if writes else ()  # noqa: S108 - semaphores need it
    masks = (*(path for path, _ in found.masks), *places.hidden)
    shown = (*found.code, places.lib_dir, places.output_dir)
    if found.home is not None:
        masks = (*masks, found.home)
        shown = (*shown, *found.roots, *found.visible)
        private = (*private, places.home_dir) if scratch else private
    rules = landlock_rules.rules_alone(
        roots,
        shown,
        masks,
        found.devices,
        scratch=(*private, *shared),
        abi=abi,
        list_folder=list_folder,
    )
    write = landlock_rules.write_rights(abi)
    return Plan(
        landlock_handled=write | landlock_rules.READ,
        landlock_allow=rules,
        landlock_scoped=landlock_rules.scopes(abi),
        writable=(*roots, places.tmp_dir) if scratch else roots,
        gaps=_landlock_gaps(abi, found, roots, unix_sockets=unix_sockets),
        notes=(*found.notes, *_unreachable(found, unix_sockets=unix_sockets)),
    )


def _landlock_gaps(
    abi: int, found: Found, roots: tuple[str, ...], *, unix_sockets: bool
) -> tuple[str, ...]:
    gaps: list[str] = list(LANDLOCK_GAPS)
    if unix_sockets:
        gaps.append("the policy opens Unix sockets, and every path can be connected to")
    gaps += [
        f"{path} is masked, but lies inside a writable root and can be read"
        for path, _ in found.masks
        if is_below_any(path, roots)
    ]
    gaps += [
        f"{path} is code of bashd's, but lies inside a writable root"
        for path in found.code
        if is_below_any(path, roots)
    ]
    if abi < landlock_rules.SCOPE_ABI:
        gaps.append("signals and abstract sockets are not scoped before ABI 6")
    if abi < landlock_rules.TRUNCATE_ABI:
        gaps.append(
            "truncation is not mediated before ABI 3: truncate(2) is refused everywhere"
        )
    return tuple(gaps)


def _unreachable(found: Found, *, unix_sockets: bool) -> tuple[str, ...]:
    wanted = (*found.sockets, *(("bashd's own",) if found.nested else ()))
    if unix_sockets or not wanted:
        return ()
    return (
        f"granted sockets cannot be reached ({', '.join(wanted)}): this runner cannot"
        " tell one Unix socket from another; sockets.unix = true opens all of them",
    )
