"""Starting the user's own daemon when none is running.

Theory of operation. Clients that find no daemon at the same instant meet at a lock file
beside the socket. The one that gets the lock looks again, then starts ``bashd serve
--detach``, which leaves our process tree, and waits for the other end of a pipe: the
daemon writes ``ready`` once it accepts, or why it cannot, and closes it. If the daemon
dies, the pipe closes with nothing in it. The lock is held until then, so that the
others find the daemon when their turn comes; if its holder dies, the kernel lets go.
The daemon gets none of our descriptors but that pipe, and an environment that holds
no secret, because commands could read it from ``/proc``.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import site
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import bashd
from bashd.client.locate import dial, home_of
from bashd.core.errors import ConnectError
from bashd.core.places import check_socket_path, state_folder
from bashd.core.scrub import scrub

if TYPE_CHECKING:
    import socket
    from collections.abc import Generator, Mapping, Sequence

IDLE_EXIT_S: Final = 600
"""Seconds without work after which a daemon that was started for a client leaves."""

START_TIMEOUT_S: Final = 30.0
"""Seconds until a daemon must be ready: an import on a cold disk and its probes."""

_PASSED_ON: Final = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ")
_PASSED_ON_PREFIXES: Final = ("LC_", "XDG_")


def start_daemon(
    path: str,
    *,
    environ: Mapping[str, str] = os.environ,
    program: Sequence[str] | None = None,
    timeout_s: float = START_TIMEOUT_S,
) -> socket.socket:
    """Start a daemon on *path*, unless another client just has, and connect to it.

    Args:
        path: Where it shall listen; its folder is made when missing, for this user.
        environ: The caller's environment; little of it is passed on.
        program: Command that serves; bashd's own by default.
        timeout_s: Seconds until it must be ready.

    Raises:
        ConnectError: It did not come up; says what the daemon said, or where its log is.
    """
    _make_private_folder(Path(check_socket_path(path)).parent)
    with _turn(f"{path}.starting"):
        connection = dial(path)
        if connection is not None:
            return connection
        log = _log_path(environ)
        said = _serve_and_listen(
            [*(program or serve_argv()), "--socket", path], environ, log, timeout_s
        )
        if said != "ready\n":
            reason = said.strip() or "it ended before it was ready"
            raise ConnectError(f"the daemon did not start: {reason} (log: {log})")
        connection = dial(path)
    if connection is None:
        raise ConnectError(f"the daemon ended as soon as it was ready (log: {log})")
    return connection


def serve_argv() -> list[str]:
    """Return the command that starts a detached daemon from this very installation."""
    # -P: the current folder is no place to import from.
    python = [sys.executable, "-P", "-m", "bashd"]
    return [*python, "serve", "--detach", "--idle-exit", str(IDLE_EXIT_S)]


def daemon_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what of *environ* a daemon needs: where it is, and no secret."""
    chosen = {
        name: value
        for name, value in environ.items()
        if name in {*_PASSED_ON, "TMPDIR"} or name.startswith(_PASSED_ON_PREFIXES)
    }
    kept, _ = scrub(chosen)
    if "BASHD_HOME" in environ:
        kept["BASHD_HOME"] = environ["BASHD_HOME"]
    root = str(Path(bashd.__file__).resolve().parents[1])
    if root not in {*site.getsitepackages(), site.getusersitepackages()}:
        # A checkout on somebody's path: the daemon must be the same bashd.
        kept["PYTHONPATH"] = root
    return kept


def _make_private_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConnectError(
            f"cannot make {folder} for the daemon's socket: {error.strerror}"
        ) from None
    if folder.stat().st_uid != os.getuid():
        raise ConnectError(
            f"{folder} belongs to another user; no daemon is started there"
        )


def _log_path(environ: Mapping[str, str]) -> str:
    folder = state_folder(environ, uid=os.getuid(), home=home_of(environ))
    try:
        Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        # The daemon will say so better, once it is asked to keep its state there.
        return os.devnull
    return f"{folder}/daemon.log"


@contextlib.contextmanager
def _turn(lock_path: str) -> Generator[None]:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        lock = os.open(lock_path, flags, 0o600)
    except OSError as error:
        raise ConnectError(f"cannot make {lock_path}: {error.strerror}") from None
    try:
        # Without a limit of its own: each holder has one, and a dead one lets go.
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _serve_and_listen(
    argv: Sequence[str], environ: Mapping[str, str], log: str, timeout_s: float
) -> str:
    """Start *argv* and return what it says on its ``--ready-fd`` until it closes it."""
    read_fd, write_fd = os.pipe()
    try:
        with open(log, "ab", opener=_open_private) as log_file:
            starter = subprocess.Popen(
                [*argv, "--ready-fd", str(write_fd)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log_file,
                pass_fds=[write_fd],
                cwd="/",
                env=daemon_environment(environ),
                start_new_session=True,
            )
        os.close(write_fd)
        write_fd = -1
        said = _read_until_closed(read_fd, timeout_s)
        if said != "ready\n":
            starter.kill()
        # The starter leaves as soon as it has started the daemon, long before this.
        starter.wait()
    except OSError as error:
        raise ConnectError(f"the daemon cannot be started: {error}") from None
    finally:
        os.close(read_fd)
        if write_fd >= 0:
            os.close(write_fd)
    return said


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _read_until_closed(fd: int, timeout_s: float) -> str:
    deadline = time.monotonic() + timeout_s
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    said = b""
    while len(said) < select.PIPE_BUF:
        left_s = deadline - time.monotonic()
        if left_s <= 0 or not poll.poll(left_s * 1000):
            return f"it was not ready after {timeout_s:g} seconds"
        data = os.read(fd, select.PIPE_BUF)
        if not data:
            break
        said += data
    return said.decode(errors="replace")
