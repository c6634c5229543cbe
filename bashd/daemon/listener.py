"""The daemon's socket: exactly one daemon owns it.

Ownership is a lock on ``PATH.owner``, held from before the socket exists until after
the daemon's work is over. So two daemons that start at the same instant cannot both
replace a stale socket, and one that starts while another is ending waits for it. The
lock says nothing about sockets that something else made; those are tried: what answers
is never replaced, what refuses a connection is stale. With socket activation the
service manager owns the socket and nothing here touches the path.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bashd.core.errors import HostError
from bashd.core.places import check_socket_path
from bashd.daemon.credentials import ask_for_credentials
from bashd.daemon.socket_folder import SocketPlace, prepare_folder

if TYPE_CHECKING:
    from collections.abc import Callable

_BACKLOG: Final = 1024
"""Cut to net.core.somaxconn by the kernel."""
WAIT_S: Final = 15.0
"""For a daemon that is starting (its probes) or ending (its tasks' grace)."""
_POLL_S: Final = 0.02
"""flock() cannot wait with a deadline."""
_NOBODY_LISTENS: Final = frozenset({errno.ECONNREFUSED, errno.ENOENT})


class AlreadyRunningError(HostError):
    """Something answers on this socket."""


class Listener:
    """A listening, non-blocking socket and, unless activated, the right to its path.

    Made by `bind` and `adopt`; `release` gives everything back.
    """

    def __init__(
        self, sock: socket.socket, path: str, owner_fd: int | None = None
    ) -> None:
        sock.settimeout(0)
        self.socket = sock
        self.path = path
        self._owner_fd = owner_fd
        self._bound = _identity(path) if owner_fd is not None else None

    @property
    def activated(self) -> bool:
        """Whether the service manager owns the socket."""
        return self._bound is None

    @property
    def gid(self) -> int | None:
        """Group that may connect by the socket's mode; None if no group may."""
        found = Path(self.path).stat()
        return found.st_gid if found.st_mode & stat.S_IWGRP else None

    def stop_if_unused(self, accept_pending: Callable[[], int]) -> bool:
        """Stop listening unless somebody is just connecting.

        The name goes first, so that nobody can begin to connect; who had begun is in
        the backlog, and then the name comes back. (A client that had looked the name
        up but was not in the backlog yet is refused and finds no socket.)

        Args:
            accept_pending: Accepts what is in the backlog and says how many that was.
        """
        if self._is_ours():
            aside = _aside(self.path)
            Path(self.path).rename(aside)
            if accept_pending():
                aside.rename(self.path)
                return False
            aside.unlink()
        self.socket.close()
        return True

    def stop(self) -> None:
        """Stop listening, and remove the socket's name if it is still ours.

        The right to the path stays until `release`: no other daemon begins while this
        one ends its tasks.
        """
        if self._is_ours():
            Path(self.path).unlink()
        self.socket.close()

    def hand_over(self) -> tuple[int, int]:
        """Let the socket and the right to its path outlive this program.

        Returns:
            The socket's descriptor, and that of the right or -1; for `inherit`, after
            an exec.
        """
        fds = (self.socket.fileno(), -1 if self._owner_fd is None else self._owner_fd)
        for fd in fds:
            if fd >= 0:
                os.set_inheritable(fd, True)  # noqa: FBT003 - as os spells it
        return fds

    def release(self) -> None:
        """Stop listening and let another daemon have the path."""
        self.stop()
        if self._owner_fd is not None:
            # Unlinked first: who gets the lock of a file that is not at its path any
            # more starts over.
            _owner(self.path).unlink(missing_ok=True)
            os.close(self._owner_fd)
            self._owner_fd = None

    def _is_ours(self) -> bool:
        if self._bound is None or self._owner_fd is None:
            return False
        try:
            return _identity(self.path) == self._bound
        except OSError:
            return False


def bind(place: SocketPlace, *, wait_s: float = WAIT_S) -> Listener:
    """Listen where *place* says, as the only daemon that does.

    Args:
        place: Path and group.
        wait_s: How long to wait for a daemon that is starting or ending.

    Raises:
        AlreadyRunningError: Something answers there.
        HostError: The path cannot be used; says why.
        InvalidParamsError: The path is too long, or relative.
    """
    path = check_socket_path(place.path)
    prepare_folder(place)
    try:
        owner_fd = _take_ownership(path, wait_s)
    except OSError as error:
        raise HostError(f"cannot lock {_owner(path)}: {error.strerror}") from None
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with contextlib.ExitStack() as undo:
        undo.callback(os.close, owner_fd)
        undo.callback(_owner(path).unlink, missing_ok=True)
        undo.callback(sock.close)
        _remove_stale(path)
        try:
            # Nobody can connect before listen(), so nobody sees another mode or group.
            sock.bind(path)
            if place.gid is not None:
                os.chown(path, -1, place.gid)
            Path(path).chmod(place.socket_mode)
            ask_for_credentials(sock)
            sock.listen(_BACKLOG)
        except OSError as error:
            raise HostError(f"cannot listen on {path}: {error.strerror}") from None
        listener = Listener(sock, path, owner_fd)
        undo.pop_all()
    return listener


def adopt(fd: int) -> Listener:
    """Take over a socket that the service manager listens on.

    Raises:
        HostError: It is not a listening Unix stream socket.
    """
    sock = socket.socket(fileno=fd)
    listens = (
        sock.family == socket.AF_UNIX
        and sock.type == socket.SOCK_STREAM
        and sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    )
    path = sock.getsockname() if listens else ""
    if not listens or not isinstance(path, str) or not path.startswith("/"):
        sock.close()
        raise HostError(
            "the service manager passed something else than a listening stream socket"
            " with a path; the socket unit needs ListenStream=/PATH"
        )
    ask_for_credentials(sock)
    return Listener(sock, path)


def inherit(socket_fd: int, owner_fd: int) -> Listener:
    """Go on with what the program before this one handed over.

    Raises:
        HostError: It is not a listening Unix stream socket.
    """
    if owner_fd < 0:
        return adopt(socket_fd)
    sock = socket.socket(fileno=socket_fd)
    try:
        return Listener(sock, sock.getsockname(), owner_fd)
    except (OSError, TypeError) as error:
        sock.close()
        raise HostError(f"the socket that was handed over is gone: {error}") from None


def _take_ownership(path: str, wait_s: float) -> int:
    deadline = time.monotonic() + wait_s
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        fd = os.open(_owner(path), flags, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(fd, 32).decode(errors="replace").strip() or "unknown"
            os.close(fd)
            if _answers(path):
                raise AlreadyRunningError(f"bashd already runs on {path}") from None
            if time.monotonic() > deadline:
                raise HostError(
                    f"{path} belongs to a daemon (pid {holder}) that does not listen"
                    " there any more; stop it, then start again"
                ) from None
            time.sleep(_POLL_S)
            continue
        if _is_at_its_path(fd, path):
            os.ftruncate(fd, 0)
            os.pwrite(fd, b"%d\n" % os.getpid(), 0)
            return fd
        os.close(fd)


def _is_at_its_path(fd: int, path: str) -> bool:
    found = os.fstat(fd)
    try:
        return _identity(str(_owner(path))) == (found.st_dev, found.st_ino)
    except FileNotFoundError:
        return False


def _remove_stale(path: str) -> None:
    """Make the path free. Called by the owner only.

    Raises:
        AlreadyRunningError: Something answers there.
        HostError: It is not a socket.
    """
    _aside(path).unlink(missing_ok=True)
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise HostError(f"{path} is there and not a socket; move it or choose another")
    if _answers(path):
        raise AlreadyRunningError(f"something already listens on {path}")
    Path(path).unlink()


def _answers(path: str) -> bool:
    """Whether something may be listening; only a clear refusal says no."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0)
        try:
            probe.connect(path)
        except OSError as error:
            return error.errno not in _NOBODY_LISTENS
    return True


def _owner(path: str) -> Path:
    return Path(f"{path}.owner")


def _aside(path: str) -> Path:
    return Path(f"{path}.aside")


def _identity(path: str) -> tuple[int, int]:
    found = os.lstat(path)
    return found.st_dev, found.st_ino
