"""Where sockets and state live: the choice of paths, from facts that callers bring.

Client and daemon both decide with these functions, so that one finds the other. They
look at nothing themselves: the environment, the home folder and the owner of a folder
are arguments. Cheap to import: the command line loads this on every call.
"""

from __future__ import annotations

from bashd.core.errors import InvalidParamsError

TYPE_CHECKING = False  # what `typing` would say, without its three milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Final

SYSTEM_SOCKET: Final = "/run/bashd/bashd.sock"
"""Where the machine's own daemon listens, if it has one."""

SYSTEM_STATE: Final = "/var/lib/bashd"

MAX_SOCKET_PATH_BYTES: Final = 107
"""Longest path of a Unix socket. Source: unix(7), ``sun_path`` less its final NUL."""


def user_socket(
    environ: Mapping[str, str],
    *,
    uid: int,
    home: str,
    owner_of: Callable[[str], int | None],
) -> str:
    """Return where the daemon of the user *uid* listens.

    Args:
        environ: The user's environment; ``XDG_RUNTIME_DIR`` counts when it is theirs.
        uid: Whose daemon.
        home: Their home folder.
        owner_of: Uid of a folder's owner; None when there is no such folder. After
            ``sudo -E`` the variable names another user's folder, which must not count.
    """
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if runtime.startswith("/") and owner_of(runtime) == uid:
        return f"{runtime}/bashd/bashd.sock"
    return f"{home}/.bashd/run/bashd.sock"


def state_folder(environ: Mapping[str, str], *, uid: int, home: str) -> str:
    """Return the default of ``[daemon] state_dir``: output, scratch and logs."""
    if uid == 0:
        return SYSTEM_STATE
    state_home = environ.get("XDG_STATE_HOME", "")
    # Source: XDG base directory specification, a relative path is to be ignored.
    base = state_home if state_home.startswith("/") else f"{home}/.local/state"
    return f"{base}/bashd"


def check_socket_path(path: str) -> str:
    """Return *path* if a Unix socket can have it.

    Raises:
        InvalidParamsError: It is relative, holds a NUL, or is too long for the kernel.
    """
    if not path.startswith("/") or "\0" in path:
        raise InvalidParamsError(f"socket path {path!r} must be an absolute path")
    size = len(path.encode(errors="surrogateescape"))
    if size > MAX_SOCKET_PATH_BYTES:
        raise InvalidParamsError(
            f"socket path {path} has {size} bytes and Linux takes at most "
            f"{MAX_SOCKET_PATH_BYTES}; choose a shorter one with --socket"
        )
    return path
