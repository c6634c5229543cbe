"""Where this daemon may make cgroups, and what limits they can keep there.

The daemon's groups lie below its own one, in a folder called ``bashd``::

    <own>/daemon                the daemon itself, where controllers are enabled
    <own>/bashd/<cell>/<n>      one command

So they stay in whatever the service manager (or whoever started the daemon) put
around it, and what watches that sees them. In version 2 a group that passes
controllers on may hold no processes itself, so the daemon moves down into a group of
its own. It does that only when it is alone, and not in a systemd service: there it
would keep systemd from starting the next daemon beside tasks that outlived a crash
(EBUSY). With ``DelegateSubgroup=daemon`` (systemd 254) the service starts where it
should be.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bashd.daemon.cgroup import (
    CONTROLLERS,
    members,
    read,
    remove_folder,
    write,
)

if TYPE_CHECKING:
    from bashd.core.policy import Limits

logger = logging.getLogger(__name__)

_TREE: Final = "bashd"
_OWN: Final = "daemon"
_UNIFIED: Final = ""
"""How /proc/PID/cgroup names the hierarchy of version 2."""
_MOUNT: Final = re.compile(r"(?:\S+ ){3}(\S+) (\S+) .*- cgroup(2?) \S+ (\S*)", re.ASCII)
"""Root, mount point, version and options of a line of mountinfo."""
_CELL: Final = re.compile("[0-9a-f]{16}")
_NEW_S: Final = 60.0
_ESCAPED: Final = {"\\040": " ", "\\011": "\t", "\\012": "\n", "\\134": "\\"}


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """One hierarchy in which groups can be made."""

    base: Path
    kind: str
    """``unified``, or the controller of version 1: ``pids`` or ``memory``."""
    controllers: frozenset[str]
    """Limits that groups here can keep."""

    @property
    def tree(self) -> Path:
        """Parent of all cells' groups."""
        return self.base / _TREE

    @property
    def unified(self) -> bool:
        """Whether this is the hierarchy of version 2."""
        return self.kind == "unified"

    def is_for(self, limits: Limits) -> bool:
        """Whether a cell with these limits needs a group here."""
        if self.unified:
            return True
        bound = limits.pids if self.kind == "pids" else limits.memory_bytes
        return bound is not None

    def make_tree(self) -> None:
        """Make the parent of all cells' groups.

        Raises:
            OSError: The kernel refuses.
        """
        self.tree.mkdir(exist_ok=True)
        if self.unified:
            _enable(self.tree, self.controllers)

    def make_cell(self, path: Path, owner: int | None) -> None:
        """Make a cell's group in version 2, which holds those of its commands.

        Args:
            path: In `tree`.
            owner: Uid whose processes there may put their children into its groups:
                the kernel wants the right at the common parent too. It reaches no
                further than the cell.

        Raises:
            OSError: The kernel refuses.
        """
        self.make_tree()
        path.mkdir(exist_ok=True)
        _enable(path, self.controllers)
        if owner is not None:
            os.chown(path / "cgroup.procs", owner, -1)


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted hierarchy."""

    point: Path
    root: str
    """Which of the hierarchy's folders is mounted there."""
    controllers: frozenset[str]
    """Of version 1; empty for version 2."""


def parse_mounts(text: str) -> list[Mount]:
    """Return the hierarchies in a /proc/PID/mountinfo. Source: proc_pid_mountinfo(5)."""
    found: list[Mount] = []
    for line in text.splitlines():
        match = _MOUNT.match(line)
        if match is None:
            continue
        root, point, version, options = match.groups()
        names = frozenset(options.split(",")) & frozenset(CONTROLLERS)
        if version == "2":
            names = frozenset[str]()
        if version == "2" or names:
            found.append(Mount(_unescaped(point), root, names))
    return found


def parse_membership(text: str) -> dict[str, str]:
    """Return controller (empty for version 2) to path, from a /proc/PID/cgroup."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        _, names, path = [*line.split(":", 2), "", ""][:3]
        for name in names.split(","):
            found[name] = path
    return found


def own_folder(mount: Mount, membership: dict[str, str]) -> Path | None:
    """Return the folder of this process's group under *mount*; None if not in sight."""
    name = next(iter(mount.controllers), _UNIFIED)
    path = membership.get(name)
    if path is None or "/.." in path:
        return None
    root = mount.root.rstrip("/")
    if path != root and not path.startswith(f"{root}/"):
        return None
    return mount.point / path[len(root) :].lstrip("/")


def find_hierarchies() -> tuple[Hierarchy, ...]:
    """Return the hierarchies this daemon may use; prepares its own place in them."""
    mounts = parse_mounts(Path("/proc/self/mountinfo").read_text())
    membership = parse_membership(Path("/proc/self/cgroup").read_text())
    found: dict[str, Hierarchy] = {}
    for mount in mounts:
        own = own_folder(mount, membership)
        if own is None or not _is_ours(own):
            continue
        if not mount.controllers:
            found["unified"] = _unified(own)
        for name in mount.controllers & {"pids", "memory"}:
            found[name] = Hierarchy(own, name, frozenset({name}))
    for hierarchy in found.values():
        clear_away(hierarchy.tree)
    # The one that kills comes first.
    order = ("unified", "pids", "memory")
    return tuple(found[kind] for kind in order if kind in found)


def clear_away(tree: Path) -> None:
    """Remove cells' groups without processes: their daemon was killed.

    Another daemon may work in the same tree, so not those that may be just being made.
    """
    try:
        cells = [entry for entry in tree.iterdir() if _CELL.fullmatch(entry.name)]
        old = [cell for cell in cells if time.time() - cell.stat().st_mtime > _NEW_S]
    except OSError:
        return
    for cell in old:
        for path, _, _ in os.walk(cell, topdown=False):
            remove_folder(Path(path))


def give_back(hierarchies: tuple[Hierarchy, ...]) -> None:
    """Remove what is empty of the daemon's own groups, as it leaves."""
    for hierarchy in hierarchies:
        remove_folder(hierarchy.tree)
        place = hierarchy.base / _OWN
        if not hierarchy.unified or not members(place) <= {os.getpid()}:
            continue
        if not place.is_dir() or _is_service(hierarchy.base):
            continue
        with contextlib.suppress(OSError):
            # In this order: a group that passes controllers on takes no process.
            _disable(hierarchy.base)
            write(hierarchy.base / "cgroup.procs", str(os.getpid()))
        remove_folder(place)


def _is_ours(folder: Path) -> bool:
    """Whether groups can be made below *folder* and processes moved there."""
    return os.access(folder, os.W_OK | os.X_OK) and os.access(
        folder / "cgroup.procs", os.W_OK
    )


def _unified(own: Path) -> Hierarchy:
    base = own.parent if own.name == _OWN and _is_ours(own.parent) else own
    wanted = frozenset(CONTROLLERS) & set(read(base / "cgroup.controllers").split())
    if wanted and _may_pass_on(base, own):
        _enable(base, wanted)
    enabled = wanted & set(read(base / "cgroup.subtree_control").split())
    if wanted - enabled:
        logger.info(
            "no cgroup limits by %s: %s is not this daemon's alone",
            ", ".join(sorted(wanted - enabled)),
            base,
        )
    return Hierarchy(base, "unified", enabled)


def _may_pass_on(base: Path, own: Path) -> bool:
    """Whether *base* holds no process, after moving this one down if that helps."""
    if own != base or not (base / "cgroup.type").exists():
        return True  # a subgroup already, or the root, for which the rule is not
    if _is_service(base) or members(base) - {os.getpid()}:
        return False
    try:
        (base / _OWN).mkdir(exist_ok=True)
        write(base / _OWN / "cgroup.procs", str(os.getpid()))
    except OSError as error:
        logger.warning("cannot move down from cgroup %s: %s", base, error.strerror)
        return False
    return True


def _is_service(folder: Path) -> bool:
    return folder.name.endswith(".service")


def _enable(folder: Path, controllers: frozenset[str]) -> None:
    for name in sorted(controllers):
        # One at a time: the kernel takes all of a line or none.
        with contextlib.suppress(OSError):
            write(folder / "cgroup.subtree_control", f"+{name}")


def _disable(folder: Path) -> None:
    for name in read(folder / "cgroup.subtree_control").split():
        write(folder / "cgroup.subtree_control", f"-{name}")


def _unescaped(path: str) -> Path:
    for code, character in _ESCAPED.items():
        path = path.replace(code, character)
    return Path(path)
