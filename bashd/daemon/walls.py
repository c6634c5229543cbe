"""From a policy and its surroundings to the walls of one cell, and whether they stand.

`question` says what has to be found out on the host, `plan` turns the answer into
mounts and rules, `Walls.stand` compares them with the host as it is before a command.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bashd.core import confinement
from bashd.core.errors import RunnerFailedError
from bashd.core.model import Mode
from bashd.daemon import survey
from bashd.daemon.agents import agent_sockets

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bashd.core.confinement import Places, Plan
    from bashd.core.policy import Policy
    from bashd.daemon.identity import Identity
    from bashd.daemon.survey import Question, Stamp, Survey, Workdir

BWRAP: Final = "bwrap"
LANDLOCK: Final = "landlock"
_SETTLE_S: Final = 1.0
"""A cell this young is not rebuilt for a protected file that was replaced once more: a
program on the host that rewrites its configuration all the time would keep every
command waiting for a new cell. The check after the command sees to such files."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What of the caller's environment decides about walls."""

    config_home: str = ""
    """``$XDG_CONFIG_HOME``; empty for ``~/.config``."""
    agents: tuple[str, ...] = ()
    """Sockets of the agents that the policy grants, as the environment names them."""


NO_SURROUNDINGS: Final = Surroundings()


def surroundings(
    policy: Policy, ambient: Mapping[str, str], identity: Identity
) -> Surroundings:
    """Pick what matters from a caller's environment."""
    config_home = ambient.get("XDG_CONFIG_HOME", "")
    return Surroundings(
        # Source: XDG base directory specification, a relative path is to be ignored.
        config_home if config_home.startswith("/") else "",
        agent_sockets(policy.agents, ambient, identity) if policy.agents else (),
    )


def question(
    policy: Policy,
    *,
    workspace: str,
    identity: Identity,
    around: Surroundings,
    runner: str | None,
    guarded: tuple[str, ...] = (),
    repositories: tuple[str, ...] = (),
) -> Question:
    """Return what to look for on the host.

    Args:
        policy: With absolute paths.
        workspace: Canonical.
        identity: Whose command.
        around: Of the caller.
        runner: Which walls will be there.
        guarded: bashd's own configuration, wherever it is.
        repositories: Those known below the workspace.
    """
    if not policy.mode.confines:
        return survey.Question(workspace, identity.uid, identity.home, "")
    writes = policy.mode is Mode.WORKSPACE_WRITE
    config_home = around.config_home or f"{identity.home}/.config"
    own = (f"{config_home}/bashd", f"{identity.home}/.config/bashd", *guarded)
    return survey.Question(
        workspace=workspace,
        uid=identity.uid,
        home=identity.home,
        config_home=config_home,
        writable=policy.writable_roots,
        bounds=policy.writable_within,
        masked=policy.masked,
        protected=policy.protected if writes else (),
        guarded=tuple(dict.fromkeys(own)) if writes else (),
        repositories=repositories if writes else (),
        devices=policy.devices,
        sockets=(*policy.sockets.grant, *around.agents),
        nested=policy.nested,
        private_home=policy.home == "private",
        visible=policy.visible,
        path_sockets=runner == BWRAP,
    )


def plan(
    policy: Policy,
    found: Survey,
    *,
    runner: str | None,
    places: Places,
    abi: int,
    identity: Identity,
    sizes: bool,
) -> Plan:
    """Turn a survey into what is applied.

    Args:
        policy: With absolute paths.
        found: The survey.
        runner: Which walls will be there.
        places: The session's folders.
        abi: Landlock's; 0 for none.
        identity: Whose commands.
        sizes: Whether the bubblewrap here can bound what a mount in memory holds.
    """
    if not policy.mode.confines:
        return confinement.Plan()
    if runner == BWRAP:
        return confinement.plan_bwrap(
            mode=policy.mode,
            scratch=policy.scratch,
            places=places,
            found=found.found,
            abi=abi,
            root_identity=identity.uid == 0,
            namespaces=policy.namespaces,
            shm_bytes=policy.limits.shm_bytes if sizes else None,
        )
    return confinement.plan_landlock(
        mode=policy.mode,
        scratch=policy.scratch,
        places=places,
        found=found.found,
        abi=abi,
        list_folder=_list_folder,
        unix_sockets=policy.sockets.unix,
    )


def _list_folder(path: str) -> list[tuple[str, bool]]:
    try:
        with os.scandir(path) as entries:
            return [(entry.name, entry.is_symlink()) for entry in entries]
    except OSError:
        return []


def landlock_settings(planned: Plan) -> dict[str, object] | None:
    """Return the launcher's Landlock settings; None for no layer at all."""
    if not planned.landlock_handled and not planned.landlock_scoped:
        return None
    return {
        "handled": planned.landlock_handled,
        "allow": [list(rule) for rule in planned.landlock_allow],
        "scoped": planned.landlock_scoped,
    }


def expected_mounts(planned: Plan) -> list[list[object]]:
    """Return what the launcher must find in the cell: path, device, inode, read-only.

    Raises:
        RunnerFailedError: Something went away since the survey.
    """
    return [_expected(*stand_in) for stand_in in planned.stand_ins]


def _expected(path: str, source: str, read_only: bool) -> list[object]:  # noqa: FBT001
    try:
        info = os.lstat(source)
        # A bind mount cannot make writable what the host has mounted read-only.
        read_only = read_only or bool(os.statvfs(source).f_flag & os.ST_RDONLY)
    except OSError as error:
        raise RunnerFailedError(f"{source} went away: {error.strerror}") from error
    return [path, info.st_dev, info.st_ino, read_only]


@dataclass(slots=True)
class Walls:
    """What a cell was built from; its methods run as the peer."""

    root: Workdir
    survey: Survey
    stamp: Stamp
    built_at: float
    """Of the monotonic clock."""
    uncovered: frozenset[str] = frozenset()
    """Protected files that were replaced since, and so have lost their mount."""

    @classmethod
    def look(cls, asked: Question) -> Walls:
        """Survey the host for a new cell.

        Raises:
            StartError: The workspace is not usable.
        """
        root = survey.find_root(asked.workspace)
        found = survey.look(asked)
        # The stamp comes first, so that a change in between shows at the next look.
        stamp = survey.stamp(found.watched)
        found = survey.look(asked, found)
        return cls(root, found, stamp, time.monotonic())

    def are_outdated(self) -> bool:
        """Whether something that a cell was to cover is not there as it was.

        What is mounted over something fails where that has gone. Deputies are asked
        one by one: they are looked for before the stamp is taken, and one that went
        in between shows in no stamp.
        """
        if not survey.is_unchanged(self.survey.watched, self.stamp):
            return True
        return self.survey.deputies.any_changed()

    def stand(self, asked: Question) -> bool:
        """Say whether a new cell would get the same walls.

        Raises:
            StartError: The workspace is not usable any more.
        """
        if survey.find_root(asked.workspace) != self.root:
            return False
        known = self.survey.question
        same = asked is known or asked == known
        if same and survey.is_unchanged(self.survey.watched, self.stamp):
            return True
        # Before the look, so that a change in between shows at the next one.
        now = survey.stamp(self.survey.watched)
        if self.survey.deputies.any_replaced():
            return False
        found = survey.look(asked, self.survey)
        if not found.fits(self.survey):
            return False
        if found.file_inodes == self.survey.file_inodes:
            self.survey, self.stamp = found, now
            self.uncovered = frozenset()
            return True
        # Otherwise left as it is, to be compared again.
        changed = set(self.survey.file_inodes).difference(found.file_inodes)
        self.uncovered = frozenset(path for path, *_ in changed)
        return time.monotonic() - self.built_at < _SETTLE_S
