"""Where the agents that a policy can grant listen: one socket each, and no folder.

The caller's environment names them; whether a socket is there, and whose it is, is
looked at before it is granted. Nothing here connects.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from bashd.daemon.identity import Identity


def agent_sockets(
    agents: Iterable[str], ambient: Mapping[str, str], identity: Identity
) -> tuple[str, ...]:
    """Return the sockets of the named agents, as far as the environment names them.

    Args:
        agents: ``ssh``, ``gpg``.
        ambient: The caller's environment.
        identity: The caller.
    """
    found: list[str] = []
    for agent in agents:
        candidates = _ssh(ambient) if agent == "ssh" else _gpg(ambient, identity)
        found += candidates[:1]
    return tuple(found)


def _ssh(ambient: Mapping[str, str]) -> list[str]:
    path = ambient.get("SSH_AUTH_SOCK", "")
    return [path] if path.startswith("/") else []


def _gpg(ambient: Mapping[str, str], identity: Identity) -> list[str]:
    """Return the places of gpg-agent's socket, the likeliest first.

    Source: gpgconf(1), "agent-socket": below the runtime folder where there is one for
    the default home, else in the home itself.
    """
    home = ambient.get("GNUPGHOME", "")
    if home.startswith("/"):
        return [f"{home}/S.gpg-agent"]
    runtime = f"/run/user/{identity.uid}/gnupg/S.gpg-agent"
    places = [runtime, f"{identity.home}/.gnupg/S.gpg-agent"]
    return [place for place in places if _is_socket_of(place, identity.uid)]


def _is_socket_of(path: str, uid: int) -> bool:
    try:
        info = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISSOCK(info.st_mode) and info.st_uid == uid
