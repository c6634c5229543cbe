"""Finding a daemon: where to look, and a connection to the first that answers.

The order is that of every tool that has a daemon per user and one per machine: what
the caller names, ``$BASHD_SOCKET``, the user's own, the machine's. Starting one is
`bashd.client.autostart`'s. Standard library only, and little of it, not even
pathlib: the command line loads this on every call.
"""

from __future__ import annotations

import os
import socket
import sys

from bashd.core.errors import ConnectError, NotAllowedError
from bashd.core.places import SYSTEM_SOCKET, check_socket_path, user_socket

TYPE_CHECKING = False  # what `typing` would say, without its three milliseconds
if TYPE_CHECKING:
    from collections.abc import Mapping


class Found:
    """The outcome of a look round.

    Attributes:
        connection: A connected socket, or None when no daemon answered.
        startable: Where the user's own daemon may be started; None when the caller
            named a socket, because then nothing else will do.
        looked_at: The paths that were tried, in order.
    """

    def __init__(
        self,
        connection: socket.socket | None,
        *,
        startable: str | None,
        looked_at: tuple[str, ...],
    ) -> None:
        self.connection = connection
        self.startable = startable
        self.looked_at = looked_at


def find_daemon(named: str | None, environ: Mapping[str, str]) -> Found:
    """Connect to the first daemon that answers.

    Args:
        named: The caller's ``--socket``; None looks further.
        environ: The caller's environment.

    Raises:
        ConnectError: The socket that was named does not answer.
        InvalidParamsError: A path is no path for a socket.
        NotAllowedError: The one that answers is neither the caller's nor root's.
    """
    explicit = named or environ.get("BASHD_SOCKET")
    if explicit:
        return Found(_dial_named(explicit), startable=None, looked_at=(explicit,))
    own = own_socket(environ)
    looked_at = (check_socket_path(own), SYSTEM_SOCKET)
    for path in looked_at:
        connection = dial(path)
        if connection is not None:
            return Found(connection, startable=own, looked_at=looked_at)
    return Found(None, startable=own, looked_at=looked_at)


def own_socket(environ: Mapping[str, str]) -> str:
    """Return the path of the socket of this user's own daemon."""
    uid = os.getuid()
    return user_socket(environ, uid=uid, home=home_of(environ), owner_of=_owner_of)


def home_of(environ: Mapping[str, str]) -> str:
    """Return the user's home folder: ``HOME``, or what the passwd file says."""
    home = environ.get("HOME", "")
    if home.startswith("/"):
        return home
    import pwd  # noqa: PLC0415 - rarely needed

    return pwd.getpwuid(os.getuid()).pw_dir


def _owner_of(folder: str) -> int | None:
    try:
        return os.stat(folder).st_uid  # noqa: PTH116
    except OSError:
        return None


def _dial_named(path: str) -> socket.socket:
    path = check_socket_path(os.path.join(os.getcwd(), path))  # noqa: PTH109, PTH118
    try:
        return _connect(path)
    except OSError as error:
        raise ConnectError(
            f"no daemon answers on {path} ({error.strerror}); "
            f"start one with: bashd serve --socket {path}"
        ) from None


def dial(path: str) -> socket.socket | None:
    """Connect to the daemon on *path*; None when there is none that takes us.

    Raises:
        NotAllowedError: The one that answers is neither the caller's nor root's.
    """
    try:
        return _connect(path)
    except OSError:
        return None


def _connect(path: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(path)
        check_server(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def check_server(connection: socket.socket, path: str) -> None:
    """Make sure that what listens on *path* belongs to the caller or to root.

    A client sends its environment and its commands; whoever can put a socket in a
    place where it looks must not receive them.

    Raises:
        NotAllowedError: It is another user's.
    """
    # struct ucred: pid, uid, gid. Source: unix(7), SO_PEERCRED.
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    server = int.from_bytes(credentials[4:8], sys.byteorder)
    if server not in {0, os.getuid()}:
        raise NotAllowedError(
            f"the daemon on {path} runs as uid {server}, which is neither yours nor "
            "root; nothing was sent to it"
        )
