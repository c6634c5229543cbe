"""What the host looks like from one session: roots, masks, protected metadata.

`look` is the thorough survey, made once per cell. `stamp` is the cheap check of every
call: the state of the folders that hold the surveyed names. Only when a stamp differs
is the survey made again, and then only in the folders that changed; only when the
answer differs too is the cell rebuilt. All of it runs with the peer's rights.
"""

from __future__ import annotations

import errno
import os
import select
import stat
from dataclasses import dataclass, field, replace
from pathlib import Path

from bashd.core.confinement import NAME_RESOLUTION, Found
from bashd.core.errors import StartError
from bashd.core.metadata import Target
from bashd.core.paths import is_below, is_below_any
from bashd.daemon import code, repositories
from bashd.daemon.masks import (
    Deputies,
    FolderStamp,
    Masks,
    find_deputies,
    find_masks,
    stamp_of,
)
from bashd.daemon.protected import anchors, existing, find_targets, watched
from bashd.daemon.real_path import real_path
from bashd.daemon.roots import resolve_roots
from bashd.launcher import kernel

Stamp = tuple[FolderStamp | None, ...]

MAX_REPOSITORIES = 64
"""Of those below the workspace's own, so many get mounts; all get the later check."""


@dataclass(frozen=True, slots=True)
class Question:
    """What to look for; derived from policy and session, compared by value."""

    workspace: str
    """Canonical."""
    uid: int
    """The caller's."""
    home: str
    config_home: str
    """``$XDG_CONFIG_HOME``, where the user's git configuration and policies lie."""
    writable: tuple[str, ...] = ()
    """Extra roots as the policy names them."""
    bounds: tuple[str, ...] | None = None
    """What an administrator confines extra roots to; None: nothing does."""
    masked: tuple[str, ...] = ()
    """Absolute paths, a glob in the last component at most."""
    protected: tuple[str, ...] = ()
    """Relative to each root, and to the home; empty where nothing is writable."""
    guarded: tuple[str, ...] = ()
    """Absolute paths protected wherever they are: bashd's own configuration."""
    repositories: tuple[str, ...] = ()
    """Known ``.git`` paths and bare repositories below the roots."""
    devices: tuple[str, ...] = ()
    sockets: tuple[str, ...] = ()
    nested: bool = False
    private_home: bool = False
    visible: tuple[str, ...] = ()
    """What of a private home is to be there, as the policy names it."""
    path_sockets: bool = False
    """Commands can connect to sockets by path, so those of others have to be found."""

    @property
    def writes(self) -> bool:
        """Whether anything of the host is writable, and so metadata is protected."""
        return bool(self.protected or self.guarded)


@dataclass(frozen=True, slots=True)
class Survey:
    """The answer, with the inodes that make it comparable."""

    question: Question
    found: Found
    inodes: tuple[tuple[str, int, int], ...]
    """Of everything mounted but the protected files."""
    file_inodes: tuple[tuple[str, int, int, int], ...]
    """Of protected files, which git and editors on the host replace all the time; the
    change time behind the number."""
    targets: tuple[Target, ...] = ()
    """Everything protected, existing or not, for the check after a command."""
    target_paths: frozenset[str] = frozenset()
    """Of all of *targets*."""
    mounted: frozenset[str] = frozenset()
    """What of them a cell under bwrap keeps by mounts."""
    watched: tuple[str, ...] = ()
    """Files and folders whose change may change the answer."""
    masks: Masks = field(default_factory=Masks, compare=False)
    deputies: Deputies = field(default_factory=Deputies, compare=False)

    def fits(self, other: Survey) -> bool:
        """Whether a cell built from this one has every mount that *other* asks for.

        Protected files apart, which may have been replaced on the host, and sockets,
        of which `bashd.daemon.masks.Deputies` tells.
        """
        return (
            replace(self.found, deputies=()) == replace(other.found, deputies=())
            and self.inodes == other.inodes
        )


def look(question: Question, before: Survey | None = None) -> Survey:
    """Survey the host. Blocking; call it as the peer.

    Args:
        question: What to look for.
        before: An earlier answer to a question with the same masks.

    Raises:
        StartError: The workspace itself is masked.
    """
    known = before if before and before.question.masked == question.masked else None
    roots, notes = find_roots(question)
    masks = find_masks(question.masked, known.masks if known else None)
    roots, notes = _without_masked(roots, notes, masks)
    home, visible, home_notes = _private_home(question, roots)
    notes = (*notes, *home_notes)
    deputies = Deputies()
    if question.path_sockets:
        deputies = before.deputies if before else find_deputies(roots)
    targets = find_targets(
        roots,
        question.protected,
        home=question.home,
        config_home=question.config_home,
        guarded=question.guarded,
        nested=question.repositories[:MAX_REPOSITORIES],
    )
    protected = existing(targets)
    found = Found(
        roots=roots,
        masks=tuple((mask.path, mask.is_dir) for mask in masks.found),
        deputies=tuple(path for path, *_ in deputies.found),
        more_deputies=not deputies.complete,
        protected=tuple((path, is_dir) for path, is_dir, _ in protected),
        anchors=anchors(targets, [path for path, _, _ in protected]),
        code=code.code_paths(),
        run_folders=tuple(p for p in NAME_RESOLUTION if Path(p).is_dir()),
        devices=tuple(p for p in question.devices if os.path.lexists(p)),
        sockets=_sockets(question.sockets),
        nested=question.nested,
        home=home,
        visible=visible,
        notes=notes,
    )
    return Survey(
        question=question,
        found=found,
        inodes=(
            _inode(question.workspace),
            *((mask.path, mask.dev, mask.ino) for mask in masks.found),
            *(inode[:3] for _, is_dir, inode in protected if is_dir),
            *(_inode(path) for path in found.sockets),
        ),
        file_inodes=tuple(inode for _, is_dir, inode in protected if not is_dir),
        targets=targets,
        target_paths=frozenset(target.path for target in targets),
        mounted=frozenset(path for path, _, _ in protected),
        watched=tuple(
            dict.fromkeys(
                (
                    *masks.watched,
                    *deputies.folders,
                    *question.writable,
                    *(watched(roots, targets) if question.writes else ()),
                    *question.repositories[:MAX_REPOSITORIES],
                )
            )
        ),
        masks=masks,
        deputies=deputies,
    )


def find_roots(question: Question) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return (writable roots, notes): the workspace, the policy's, a repository's."""
    roots, notes = resolve_roots(question.workspace, question.writable, question.bounds)
    if not question.writes:
        return roots, notes
    granted, refusal = repositories.granted_with(question.workspace, question.uid)
    if granted is not None and not is_below_any(granted, roots):
        roots = (*roots, granted)
    if refusal:
        notes = (*notes, f"the workspace's repository is not writable: {refusal}")
    return roots, notes


def _inode(path: str) -> tuple[str, int, int]:
    try:
        info = os.lstat(path)
    except OSError:
        return (path, 0, 0)
    return (path, info.st_dev, info.st_ino)


def _without_masked(
    roots: tuple[str, ...], notes: tuple[str, ...], masks: Masks
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Leave out roots that lie inside something masked."""
    folders = [mask.path for mask in masks.found if mask.is_dir]
    for root in roots:
        mask = next((path for path in folders if is_below(root, path)), None)
        if mask is None:
            continue
        if root == roots[0]:
            raise StartError(
                f"cannot use the working folder {root}: the policy masks {mask}; work"
                " elsewhere, or take the mask out with unmasked"
            )
        notes = (*notes, f"{root} is not writable: the policy masks {mask}")
        roots = tuple(other for other in roots if other != root)
    return roots, notes


def _private_home(
    question: Question, roots: tuple[str, ...]
) -> tuple[str | None, tuple[str, ...], tuple[str, ...]]:
    """Return (the home to cover, what stays visible in it, notes)."""
    home = real_path(question.home)
    if not question.private_home or home == "/" or not os.path.isdir(home):  # noqa: PTH112
        return None, (), ()
    if home in roots:
        return None, (), ("the home is not private: it is a writable root itself",)
    seen: dict[str, None] = {}
    notes: list[str] = []
    for path in question.visible:
        real = real_path(path)
        if not os.path.isdir(real):  # noqa: PTH112
            continue
        if is_below(home, real):
            notes.append(f"{path} is not visible: the whole home would be")
        elif is_below(real, home) and not is_below_any(real, roots):
            seen[real] = None
    return home, tuple(seen), tuple(notes)


def _sockets(paths: tuple[str, ...]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for path in paths:
        real = real_path(path)
        try:
            is_socket = stat.S_ISSOCK(os.lstat(real).st_mode)
        except OSError:
            continue
        if is_socket:
            found[real] = None
    return tuple(found)


def stamp(places: tuple[str, ...]) -> Stamp:
    """Return device, inode and change time of each; None where nothing is.

    An equal stamp of what a survey watches means that it would find the same names.
    """
    return tuple(map(stamp_of, places))


def is_unchanged(places: tuple[str, ...], before: Stamp) -> bool:
    """Whether `stamp` would return what it returned before, at less cost."""
    stat_path = os.stat
    for path, was in zip(places, before, strict=True):
        try:
            info = stat_path(path)
        except OSError:
            if was is not None:
                return False
            continue
        if was != (info.st_dev, info.st_ino, info.st_ctime_ns):
            return False
    return True


@dataclass(frozen=True, slots=True)
class Workdir:
    """A resolved working folder: its canonical path and its inode."""

    path: str
    dev: int
    ino: int


def find_root(path: str) -> Workdir:
    """Open a session's canonical root anew, following no link.

    Raises:
        StartError: It is gone, is a symlink now, or cannot be entered.
    """
    try:
        return _open_folder(path)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR) and os.path.lexists(path):
            raise StartError(
                f"the session's folder {path} is reached through a symbolic link or"
                " is no folder any more; open a session on the real path"
            ) from error
        raise StartError(_start_text(error, path)) from error


def find_workdir(path: str) -> Workdir:
    """Resolve a caller's working folder component by component, links included.

    ``link/..`` is where a chdir would land, not where the text says.

    Raises:
        StartError: With the ENOENT text, or whatever else stands in the way.
    """
    try:
        return _open_folder(os.path.realpath(path, strict=True))
    except OSError as error:
        raise StartError(_start_text(error, path)) from error


def _open_folder(path: str) -> Workdir:
    fd = kernel.open_no_symlinks(path, os.O_PATH | os.O_DIRECTORY)
    try:
        info = os.fstat(fd)
    finally:
        os.close(fd)
    return Workdir(path, info.st_dev, info.st_ino)


def _start_text(error: OSError, path: str) -> str:
    name = errno.errorcode.get(error.errno or 0, "EIO")
    return (
        f"cannot use the working folder {path}: {name}: {os.strerror(error.errno or 0)}"
    )


class MountTable:
    """Notices changes of the host's mount table, without reading it.

    Source: proc_pid_mounts(5): the file polls as POLLERR | POLLPRI after a change.
    """

    def __init__(self) -> None:
        self._file = Path("/proc/self/mountinfo").open("rb")  # noqa: SIM115 - kept open
        self._poll = select.poll()
        self._poll.register(self._file, select.POLLPRI)
        self.generation = 0

    def check(self) -> int:
        """Return a number that grows with every change."""
        if self._poll.poll(0):
            self.generation += 1
        return self.generation

    def close(self) -> None:
        """Stop watching."""
        self._file.close()
