"""A connection to a daemon, started for the occasion if there is none.

Which machine it is on is decided here too; `bashd.client.remote` gets to another one.
"""

from __future__ import annotations

import os

from bashd.client.locate import find_daemon
from bashd.core.errors import ConnectError

TYPE_CHECKING = False  # what `typing` would say, without its three milliseconds
if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping


def chosen_host(
    host: str | None, named: str | None, environ: Mapping[str, str] = os.environ
) -> str | None:
    """Return the host whose daemon to talk to; None for this machine.

    Args:
        host: The caller's ``--host``, which decides; empty means this machine.
        named: The caller's ``--socket``; alone it is a path on this machine.
        environ: ``BASHD_HOST`` in it counts when neither says anything.
    """
    if host is None and named is None:
        host = environ.get("BASHD_HOST")
    return host or None


def reach_daemon(
    named: str | None = None,
    *,
    autostart: bool = True,
    environ: Mapping[str, str] = os.environ,
) -> socket.socket:
    """Return a connected, blocking socket.

    Args:
        named: Path of the one socket to use; None looks in the usual places.
        autostart: Start the user's own daemon when none answers. Never done for a
            socket that was named.
        environ: The caller's environment.

    Raises:
        ConnectError: No daemon answers, or the one started did not come up.
        InvalidParamsError: A path is no path for a socket.
        NotAllowedError: The one that answers is neither the caller's nor root's.
    """
    found = find_daemon(named, environ)
    if found.connection is not None:
        return found.connection
    if not autostart or found.startable is None:
        looked_at = " and ".join(found.looked_at)
        raise ConnectError(
            f"no daemon is running (looked at {looked_at}); start one with: bashd serve"
        )
    from bashd.client.autostart import start_daemon  # noqa: PLC0415 - rarely needed

    return start_daemon(found.startable, environ=environ)
