"""Which paths inside the writable roots are protected, whether they exist or not.

Plain names are the policy's, relative to each root and to the home. Git's stand for
every repository's own: the root's, linked worktrees', submodules', and those found
further down. Run as the peer.
"""

from __future__ import annotations

import os
import stat

from bashd.core.metadata import GIT_NAMES, Kind, Target
from bashd.core.paths import folders_between, is_below
from bashd.daemon import repositories
from bashd.daemon.real_path import real_path
from bashd.daemon.repositories import Repository

Existing = tuple[str, bool, tuple[str, int, int, int]]
"""Path, whether it is a folder, and (path, device, inode, change time). A folder's time
is 0: it changes with what is in it. A file that replaces another often gets its inode's
number, and then only the time is another."""


def find_targets(
    roots: tuple[str, ...],
    names: tuple[str, ...],
    *,
    home: str,
    config_home: str,
    guarded: tuple[str, ...] = (),
    nested: tuple[str, ...] = (),
) -> tuple[Target, ...]:
    """List what is protected.

    Args:
        roots: Writable, canonical.
        names: The policy's, relative.
        home: The caller's home folder, to which plain names are relative as well.
        config_home: Where the caller's git configuration lies.
        guarded: Absolute paths protected wherever they are.
        nested: ``.git`` paths and bare repositories below the roots.
    """
    plain = [
        f"{base.rstrip('/')}/{name}"
        for base in (*roots, home)
        for name in names
        if name not in GIT_NAMES
    ]
    parents: dict[str, str] = {}
    wanted = [(_real(path, parents), Kind.PLAIN) for path in (*plain, *guarded)]
    git = [name for name in names if name in GIT_NAMES]
    if git:
        hooks = repositories.user_hooks_paths(home, config_home)
        for repository in _repositories(roots, nested):
            wanted += repositories.paths_that_run(repository, git, hooks)
    found: dict[str, Target] = {}
    for path, kind in wanted:
        root = next((r for r in roots if is_below(path, r)), None)
        # A path that holds a whole root (core.hooksPath = .) cannot be protected.
        if root is not None and not any(is_below(r, path) for r in roots):
            found.setdefault(path, Target(path, kind, root))
    return tuple(found.values())


def _real(path: str, parents: dict[str, str]) -> str:
    """Return the canonical path; *parents* remembers those of folders.

    Most of the names are not there, many share a folder, and only a link leads on.
    """
    parent, _, name = path.rpartition("/")
    real = parents.get(parent)
    if real is None:
        real = parents[parent] = real_path(parent or "/")
    path = f"{real.rstrip('/')}/{name}"
    try:
        is_link = stat.S_ISLNK(os.lstat(path).st_mode)
    except OSError:
        return path
    return real_path(path) if is_link else path


def _repositories(roots: tuple[str, ...], nested: tuple[str, ...]) -> list[Repository]:
    found: dict[str, Repository] = {}
    # A granted main repository is a root itself, and bare.
    for name in (*(f"{root.rstrip('/')}/.git" for root in roots), *nested, *roots):
        repository = repositories.find_at(name)
        if repository is not None:
            found.setdefault(repository.common_dir, repository)
    return list(found.values())


def existing(targets: tuple[Target, ...]) -> list[Existing]:
    """Return those targets that are there and can be mounted over, sorted."""
    found: list[Existing] = []
    for target in targets:
        try:
            info = os.lstat(target.path)
        except OSError:
            continue
        if stat.S_ISDIR(info.st_mode) or stat.S_ISREG(info.st_mode):
            is_dir = stat.S_ISDIR(info.st_mode)
            changed_ns = 0 if is_dir else info.st_ctime_ns
            inode = (target.path, info.st_dev, info.st_ino, changed_ns)
            found.append((target.path, is_dir, inode))
    return sorted(found)


def anchors(targets: tuple[Target, ...], paths: list[str]) -> tuple[str, ...]:
    """Return the folders that must not be moved away from above protected ones.

    For git only those from the repository's folder down: anchoring every folder above
    a repository would make half the workspace's folders impossible to rename.

    Args:
        targets: Everything protected.
        paths: Those of them that exist.
    """
    by_path = {target.path: target for target in targets}
    found: dict[str, None] = {}
    for path in paths:
        target = by_path[path]
        above = list(folders_between(path, target.root))
        if target.kind is not Kind.PLAIN:
            names = [folder.rpartition("/")[2] for folder in above]
            above = above[names.index(".git") :] if ".git" in names else above[-1:]
        found.update(dict.fromkeys(above))
    return tuple(sorted(found))


def watched(roots: tuple[str, ...], targets: tuple[Target, ...]) -> tuple[str, ...]:
    """Return the files and folders whose change may change what is protected."""
    places: dict[str, None] = {}
    for root in roots:
        places[root] = None
        # The file or link of a worktree, too: it may be rewritten in place.
        places[f"{root.rstrip('/')}/.git"] = None
    for target in targets:
        places.update(dict.fromkeys(folders_between(target.path, target.root)))
        if target.kind is Kind.CONFIG:
            # core.hooksPath may be edited in place.
            places[target.path] = None
    return tuple(places)
