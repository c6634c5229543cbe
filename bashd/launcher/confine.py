"""The steps that put a process behind the walls, in their order, each one named.

Runs in the cell only: first as the process that may still change its uid, later in
the zygote and in each spare with nothing left to give up. `Settings` is what the
daemon decided; nothing here chooses.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

import prctl as untyped_prctl

from . import kernel

prctl: Any = untyped_prctl
"""The package comes without types."""


class StepError(Exception):
    """A named step failed; nothing may run after it."""

    def __init__(self, step: str, reason: str) -> None:
        super().__init__(f"{step}: {reason}")
        self.step = step
        self.reason = reason


@contextlib.contextmanager
def step(name: str) -> Generator[None]:
    """Turn an `OSError` in the block into a `StepError` called *name*."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise StepError(name, str(error)) from error


class LandlockRules(NamedTuple):
    """Which file rights are handled and what is allowed beneath which path."""

    handled: int
    allow: list[tuple[str, int]]
    scoped: int
    """Scope bits of the shared layers; 0 where the ABI has none."""


class Settings(NamedTuple):
    """What one cell is to be.

    Marshalled in the CONFIG message: both ends are the same interpreter, and what JSON
    imports would be a tenth of a cell's start.
    """

    become: list[Any] | None = None
    """[uid, gid, [groups]] when the launcher must become the peer; else None."""
    confined: bool = True
    """False only for danger-full-access: no wall, no no_new_privs."""
    own_layer: bool = False
    """The zygote adds a scoped layer of its own, so that its commands cannot signal
    the keeper (landlock runner; under bwrap the keeper is pid 1)."""
    landlock: dict[str, Any] | None = None
    landlock_log: bool = False
    """Log refusals after exec (ABI 7)."""
    mounts: Sequence[list[Any]] = ()
    """[path, dev, ino, read-only]: what these paths must still be in the cell."""
    bash: str = "/bin/bash"
    home: dict[str, Any] | None = None
    """How to dial home when the daemon dies: socket ``name`` in the folder that came
    as a descriptor, the daemon's ``uid``, this ``cell`` and its ``secret``, and the
    ``timeout_s`` after which orphans end. None: the cell ends with its daemon."""

    @property
    def log_flags(self) -> int:
        """Flags of every layer: whether refusals of what is executed are recorded."""
        return kernel.LANDLOCK_RESTRICT_SELF_LOG_NEW_EXEC_ON if self.landlock_log else 0

    def rules(self) -> LandlockRules | None:
        """Return the Landlock rules, or None where the kernel has no Landlock."""
        if self.landlock is None:
            return None
        return LandlockRules(
            self.landlock["handled"],
            [(path, access) for path, access in self.landlock["allow"]],
            self.landlock["scoped"],
        )


def become_peer(uid: int, gid: int, groups: list[int], *, confined: bool) -> None:
    """Become the peer for good. The order matters.

    The bounding set can only be dropped while CAP_SETPCAP is there, groups and ids
    only before the uid is gone, and only an explicit capset clears the inheritable
    set. In full-access mode the bounding set stays, so that sudo works.
    """
    if confined:
        with step("capbset"):
            kernel.drop_bounding_set()
    with step("setgroups"):
        os.setgroups(groups)
    with step("setresgid"):
        os.setresgid(gid, gid, gid)
    with step("setresuid"):
        os.setresuid(uid, uid, uid)
    if confined:
        with step("capset"):
            kernel.clear_capabilities()


def seal_process(*, confined: bool) -> None:
    """Refuse ptrace and /proc access by commands of the same uid; give up set-uid."""
    with step("dumpable"):
        prctl.set_dumpable(0)
    if confined:
        with step("no_new_privs"):
            prctl.set_no_new_privs(1)


_DIRECTORY_ONLY = 0x3FF8 | 0
"""Rights that exist only for folders: READ_DIR (bit 3) to REFER (bit 13)."""


def build_ruleset(rules: LandlockRules, *, scoped: bool) -> kernel.Landlock:
    """Open every allowed path inside the cell and add its rule.

    A path that is missing is skipped: what is not there needs no permission, and
    what appears later stays refused.
    """
    ruleset = kernel.Landlock(rules.handled, 0, rules.scoped if scoped else 0)
    for path, access in rules.allow:
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue
        try:
            is_dir = stat.S_ISDIR(os.fstat(fd).st_mode)
            allowed = access if is_dir else access & ~_DIRECTORY_ONLY
            if allowed & rules.handled:
                ruleset.allow_fd(fd, allowed & rules.handled)
        finally:
            os.close(fd)
    return ruleset
