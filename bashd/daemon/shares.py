"""What each user may take of the daemon: ``[limits]`` as their ceiling changes them.

One share a user, not one a session: who opens more sessions gets no more of anything.
"""

from __future__ import annotations

import contextlib
import grp
from typing import TYPE_CHECKING, Final

from bashd.daemon.output_budget import OutputBudget

if TYPE_CHECKING:
    from bashd.core.config import Config, LimitsConfig
    from bashd.daemon.identity import Identity

_MOST: Final = 1024
"""Identities remembered; a login with other groups is another one."""


class Shares:
    """Looks up and remembers what users may take.

    Args:
        config: Of the daemon.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._limits: dict[Identity, LimitsConfig] = {}
        self._all_output = OutputBudget(config.limits.output_bytes)
        self._output: dict[int, OutputBudget] = {}

    def limits(self, identity: Identity) -> LimitsConfig:
        """Return the quotas of one user."""
        known = self._limits.get(identity)
        if known is None:
            ceiling = self._config.ceiling_of(
                identity.name, group_names(identity), home=identity.home
            )
            if len(self._limits) >= _MOST:
                self._limits.clear()
            known = self._limits[identity] = self._config.limits_under(ceiling)
        return known

    @property
    def output_kept_bytes(self) -> int:
        """What the output of all users takes on disk."""
        return self._all_output.used_bytes

    def output(self, identity: Identity) -> OutputBudget:
        """Return what the output of all of one user's sessions counts against."""
        budget = self._output.get(identity.uid)
        if budget is None:
            most = self.limits(identity).output_bytes
            budget = OutputBudget(most, parent=self._all_output)
            self._output[identity.uid] = budget
        return budget


def group_names(identity: Identity) -> tuple[str, ...]:
    """Return the names of all groups of a user; those without a name are left out."""
    names: list[str] = []
    for gid in dict.fromkeys((identity.gid, *identity.groups)):
        with contextlib.suppress(KeyError):
            names.append(grp.getgrgid(gid).gr_name)
    return tuple(names)
