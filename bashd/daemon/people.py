"""Names, homes and shells by uid; the only user facts that are not the kernel's."""

from __future__ import annotations

import pwd
from typing import Final

import trio

from bashd.daemon.identity import Identity

_KEPT_S: Final = 60
"""A changed shell or home is seen within a minute."""
_MOST: Final = 1024


class People:
    """Looks users up and remembers them for a minute.

    A look-up may ask a directory server, so it runs in a worker thread and delays only
    the connection that needs it.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[float, tuple[str, str, str]]] = {}

    async def identity(self, uid: int, gid: int, groups: tuple[int, ...]) -> Identity:
        """Return a process's identity; a uid that passwd lacks has its number."""
        name, home, shell = await self._facts(uid)
        return Identity(uid, gid, groups, name, home, shell)

    async def _facts(self, uid: int) -> tuple[str, str, str]:
        known = self._known.get(uid)
        now = trio.current_time()
        if known is not None and now - known[0] < _KEPT_S:
            return known[1]
        facts = await trio.to_thread.run_sync(_look_up, uid, abandon_on_cancel=True)
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[uid] = (now, facts)
        return facts


def _look_up(uid: int) -> tuple[str, str, str]:
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return str(uid), "/", "/bin/sh"
    return entry.pw_name, entry.pw_dir or "/", entry.pw_shell or "/bin/sh"
