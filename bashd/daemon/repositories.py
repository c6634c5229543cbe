"""Where git keeps what it runs: hooks and configuration, wherever they really are.

A ``.git`` may be a folder, a file that names one (worktrees, submodules) or a symbolic
link; ``core.hooksPath`` may lead elsewhere; submodules have folders of their own inside
``.git/modules``. Nothing found here is trusted: a workspace can say anything, so paths
count only where they are inside a writable root, and the main repository of a worktree
only where it names that worktree itself. Run as the peer.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from bashd.core.git_config import gitdir_of, value_of
from bashd.core.metadata import (
    CONFIG_NAME,
    HOOKS_NAME,
    WORKTREE_CONFIG_NAME,
    Kind,
)
from bashd.daemon.real_path import real_path

_MAX_TEXT_BYTES: Final = 256 * 1024
"""A configuration file is some kilobytes; what is longer is not looked into."""
_MAX_MODULES: Final = 128
_MAX_MODULE_DEPTH: Final = 8
"""A module's name may hold slashes, and modules have modules."""


@dataclass(frozen=True, slots=True)
class Repository:
    """One repository as it was found."""

    dot_git: str
    """The name by which git finds it from its work tree, or the folder itself."""
    git_dir: str
    """Canonical folder behind that name."""
    common_dir: str
    """Canonical folder with hooks and config: *git_dir*, or the main repository's."""
    work_tree: str | None
    """Canonical folder from which git runs hooks; None for a bare repository."""

    @property
    def is_linked(self) -> bool:
        """Whether hooks and config are another repository's."""
        return self.git_dir != self.common_dir


def read_text(path: str) -> str | None:
    """Return a regular file's text; None where it cannot be had.

    Never waits: a name inside a workspace may lead to a pipe.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except (OSError, ValueError):
        return None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        return os.pread(fd, _MAX_TEXT_BYTES, 0).decode(errors="surrogateescape")
    except OSError:
        return None
    finally:
        os.close(fd)


def _named_in(path: str) -> str | None:
    """Return the path that a one-line file holds."""
    text = (read_text(path) or "").strip("\n")
    return text if text and "\0" not in text else None


def find(dot_git: str) -> Repository | None:
    """Return the repository behind a ``.git``, or None if there is none.

    Args:
        dot_git: Absolute; the folder it lies in is canonical.
    """
    parent = os.path.dirname(dot_git)  # noqa: PTH120 - paths are text here
    git_dir = _git_dir(dot_git, parent)
    if git_dir is None:
        return None
    common = _named_in(f"{git_dir}/commondir")
    common_dir = git_dir
    if common is not None:
        common_dir = real_path(os.path.join(git_dir, common))  # noqa: PTH118
    return Repository(dot_git, git_dir, common_dir, parent)


def find_bare(folder: str) -> Repository | None:
    """Return the repository that *folder* itself is, if it looks like one to git."""
    if not _is_git_dir(folder):
        return None
    return Repository(folder, folder, folder, None)


def find_at(path: str) -> Repository | None:
    """Return the repository that *path* names: a ``.git``, or a bare one's folder."""
    return find(path) if path.endswith("/.git") else find_bare(path)


def _git_dir(dot_git: str, parent: str) -> str | None:
    try:
        info = os.stat(dot_git)  # noqa: PTH116 - paths are text here
    except OSError:
        return None
    if stat.S_ISDIR(info.st_mode):
        return real_path(dot_git)
    named = gitdir_of(read_text(dot_git) or "")
    if named is None:
        return None
    target = real_path(os.path.join(parent, named))  # noqa: PTH118
    return target if os.path.isdir(target) else None  # noqa: PTH112


def _is_git_dir(folder: str) -> bool:
    # Source: is_git_directory() in git's setup.c.
    return all(
        os.path.lexists(f"{folder}/{name}") for name in ("HEAD", "objects", "refs")
    )


def paths_that_run(
    repository: Repository, wanted: Iterable[str], user_hooks: Iterable[str] = ()
) -> list[tuple[str, Kind]]:
    """Return the canonical paths that decide what git runs there, existing or not.

    Args:
        repository: Whose.
        wanted: Which of `bashd.core.metadata.GIT_NAMES` the policy protects.
        user_hooks: Relative ``core.hooksPath`` values of the user's own configuration.
    """
    common, own = repository.common_dir, repository.git_dir
    folders = [common, *_modules(common)]
    trees = [own, *_worktrees(common)]
    by_name = {
        HOOKS_NAME: [f"{folder}/hooks" for folder in folders]
        + _redirected(repository, user_hooks),
        CONFIG_NAME: [f"{folder}/config" for folder in folders],
        WORKTREE_CONFIG_NAME: [f"{f}/config.worktree" for f in (*folders, *trees)],
    }
    found: dict[str, Kind] = {}
    for name in wanted:
        kind = Kind.HOOKS if name == HOOKS_NAME else Kind.CONFIG
        for path in by_name[name]:
            found.setdefault(real_path(path), kind)
    return list(found.items())


def _redirected(repository: Repository, user_hooks: Iterable[str]) -> list[str]:
    if repository.work_tree is None:
        return []
    return [
        os.path.join(repository.work_tree, path)  # noqa: PTH118
        for path in (*redirected_hooks(repository), *user_hooks)
        if not path.startswith("~")
    ]


def redirected_hooks(repository: Repository) -> list[str]:
    """Return what the repository itself says in ``core.hooksPath``."""
    found: list[str] = []
    for name in (
        f"{repository.common_dir}/config",
        f"{repository.git_dir}/config.worktree",
    ):
        value = value_of(read_text(name) or "", "core.hookspath")
        if value and "\0" not in value:
            found.append(value)
    return found


def user_hooks_paths(home: str, config_home: str) -> tuple[str, ...]:
    """Return relative ``core.hooksPath`` values that hold in every repository."""
    found: list[str] = []
    for path in ("/etc/gitconfig", f"{config_home}/git/config", f"{home}/.gitconfig"):
        value = value_of(read_text(path) or "", "core.hookspath")
        if value and not value.startswith(("/", "~")) and "\0" not in value:
            found.append(value)
    return tuple(found)


def _worktrees(common_dir: str) -> list[str]:
    return [f"{common_dir}/worktrees/{n}" for n in _folders(f"{common_dir}/worktrees")]


def _modules(common_dir: str) -> list[str]:
    """Return the git folders of submodules, those of linked worktrees included."""
    found: list[str] = []
    pending = [(f"{common_dir}/modules", 0)]
    pending += [(f"{tree}/modules", 0) for tree in _worktrees(common_dir)]
    while pending and len(found) < _MAX_MODULES:
        folder, depth = pending.pop()
        for name in _folders(folder):
            path = f"{folder}/{name}"
            if _is_git_dir(path):
                found.append(path)
                pending.append((f"{path}/modules", depth + 1))
            elif depth < _MAX_MODULE_DEPTH:
                pending.append((path, depth + 1))
    return found[:_MAX_MODULES]


def _folders(path: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return sorted(e.name for e in entries if e.is_dir(follow_symlinks=False))
    except OSError:
        return []


def granted_with(workspace: str, uid: int) -> tuple[str | None, str]:
    """Return the main repository that a linked workspace may write to, and why not.

    A worktree commits into the repository it was made from; a submodule has its folder
    inside that of the repository above. Neither lies in the workspace, and the
    workspace's own word for it (its ``.git`` file) counts nothing: the repository must
    name this workspace itself, and both must be the caller's.

    Args:
        workspace: Canonical.
        uid: The caller's.

    Returns:
        (folder, "") to grant, (None, reason) to refuse, (None, "") where there is
        nothing to decide.
    """
    dot_git = f"{workspace}/.git"
    repository = find(dot_git)
    if repository is None or repository.git_dir == dot_git:
        return None, ""
    if not _all_owned(uid, (workspace, repository.git_dir, repository.common_dir)):
        return None, f"{repository.common_dir} belongs to somebody else"
    if not _names(repository, workspace):
        return None, f"{repository.git_dir} does not name {workspace} as its own"
    return repository.common_dir, ""


def _names(repository: Repository, workspace: str) -> bool:
    git_dir, common_dir = repository.git_dir, repository.common_dir
    if repository.is_linked:
        back = _named_in(f"{git_dir}/gitdir")
        return (
            os.path.dirname(git_dir) == f"{common_dir}/worktrees"  # noqa: PTH120
            and back is not None
            and _folder_of(os.path.join(git_dir, back)) == workspace  # noqa: PTH118
        )
    named = value_of(read_text(f"{git_dir}/config") or "", "core.worktree")
    if not named or "\0" in named:
        return False
    return real_path(os.path.join(git_dir, named)) == workspace  # noqa: PTH118


def _folder_of(path: str) -> str:
    return real_path(os.path.dirname(path))  # noqa: PTH120


def _all_owned(uid: int, paths: Iterable[str]) -> bool:
    try:
        return all(os.stat(path).st_uid == uid for path in paths)  # noqa: PTH116
    except OSError:
        return False
