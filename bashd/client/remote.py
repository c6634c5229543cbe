"""A daemon on another machine, over the system's own ssh.

Theory of operation. ``ssh HOST bashd dial-stdio`` joins its stdin and stdout to the
daemon's socket over there; here both are one end of a socketpair, so that everything
above sees a connected socket, as it does for a daemon on this machine. Who the other
machine is and who we are there is ssh's to settle, with the user's own configuration,
keys and known hosts. What only the far side knows, its environment and folder, its
`bashd.cli.dial_cmd` fills in. When the connection ends, ssh's exit status and what it
said on stderr tell why.

The ssh ignores Ctrl-C: it is for the command, and the word about it has to travel.
"""

from __future__ import annotations

import os
import select
import shlex
import signal
import socket

from bashd.core.errors import ConnectError, InvalidParamsError

TYPE_CHECKING = False  # what `typing` would say, without its four milliseconds
if TYPE_CHECKING:
    from typing import Final

_END_S: Final = 5.0
"""Seconds for an ssh to leave once its connection is closed."""
_SAID_BYTES: Final = 8 * 1024
"""How much of the end of ssh's stderr is looked at."""

_SSH_FAILED: Final = 255
"""Source: ssh(1), exit status of ssh itself."""
_NOT_FOUND: Final = (126, 127)
"""Source: POSIX sh, exit statuses of a command that cannot be found or executed."""
_BAD_WORDS: Final = 2
_BASHD_FAILED: Final = 125

_PLAIN: Final = frozenset(
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"
)
_IN_BRACKETS: Final = _PLAIN | frozenset(":%")
_PORT_DIGITS: Final = 5

# Ctrl-C at the terminal reaches every process of its group; an ignored signal stays
# ignored through exec.
_DEAF: Final = 'trap \'\' INT QUIT; exec "$0" "$@"'

# A login by ssh reads no profile, so a bashd of `pip install --user` is not on PATH.
_FAR: Final = 'command -v bashd >/dev/null || PATH="$PATH:$HOME/.local/bin"; exec '


def ssh_words(host: str) -> list[str]:
    """Return the arguments of ssh that lead to *host*.

    Args:
        host: ``ssh://[user@]host[:port]``; a bare ``[user@]host`` does as well. The
            host may be an alias of the user's ssh configuration.

    Raises:
        InvalidParamsError: It is no such address.
    """
    parts = _split(host)
    if parts is None or any(name.startswith("-") for name in parts[:2]):
        raise InvalidParamsError(
            f"host {host!r} makes no sense; write ssh://[user@]host[:port]"
        )
    user, name, port = parts
    words: list[str] = []
    if user:
        words += ["-l", user]
    if port:
        words += ["-p", port]
    return [*words, "--", name]


def _split(host: str) -> tuple[str, str, str] | None:
    """Return (user, host, port), empty where missing; None where it is no address.

    By hand: compiling a pattern takes two milliseconds of every command over ssh.
    """
    text = host.removeprefix("ssh://").removesuffix("/")
    user, at, rest = text.rpartition("@")
    if at and (not user or "@" in user or "/" in user or len(user.split()) != 1):
        return None
    if user != user.strip():
        return None
    if rest.startswith("["):
        name, closing, rest = rest[1:].partition("]")
        allowed, rest = _IN_BRACKETS, rest if closing else "?"
    else:
        name, colon, rest = rest.partition(":")
        allowed, rest = _PLAIN, colon + rest
    port = rest.removeprefix(":")
    fits = not rest or (
        rest.startswith(":")
        and port.isascii()
        and port.isdigit()
        and len(port) <= _PORT_DIGITS
    )
    return (user, name, port) if name and fits and allowed.issuperset(name) else None


def far_command(named: str | None, *, autostart: bool) -> str:
    """Return the command for the far user's login shell, whichever that is."""
    words = ["bashd", "dial-stdio"]
    if named is not None:
        words += ["--socket", named]
    if not autostart:
        words.append("--no-autostart")
    return f"sh -c {shlex.quote(_FAR + shlex.join(words))}"


class Process:
    """A child of ours; `subprocess` would cost a command over ssh eight milliseconds.

    Args:
        argv: Its program by path, and its arguments.
        end: What becomes its stdin and stdout.
        said_fd: What becomes its stderr.

    Raises:
        OSError: It cannot be started.
    """

    def __init__(self, argv: list[str], end: int, said_fd: int) -> None:
        self.pid = os.posix_spawn(
            argv[0],
            argv,
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, end, 0),
                (os.POSIX_SPAWN_DUP2, end, 1),
                (os.POSIX_SPAWN_DUP2, said_fd, 2),
            ],
            # Python ignores them, and ignored signals stay so through exec.
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
        )
        self._pidfd = os.pidfd_open(self.pid)
        self._status: int | None = None

    def wait(self, timeout_s: float | None) -> int | None:
        """Return its exit status, or minus its signal; None if it still runs then."""
        if self._status is None:
            poll = select.poll()
            poll.register(self._pidfd, select.POLLIN)
            if not poll.poll(None if timeout_s is None else timeout_s * 1000):
                return None
            _, status = os.waitpid(self.pid, 0)
            os.close(self._pidfd)
            self._status = os.waitstatus_to_exitcode(status)
        return self._status

    def kill(self) -> None:
        """Send SIGKILL."""
        if self._status is None:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)


def find_program(name: str) -> str | None:
    """Return the path of a program on PATH, or None."""
    for folder in os.get_exec_path():
        path = os.path.join(folder, name)  # noqa: PTH118 - no pathlib here
        if os.path.isfile(path) and os.access(path, os.X_OK):  # noqa: PTH113
            return path
    return None


class FarDaemon:
    """A running ssh and our end of it. See `dial_host`."""

    def __init__(
        self,
        host: str,
        connection: socket.socket,
        process: Process,
        said_fd: int,
    ) -> None:
        self.host = host
        self.connection = connection
        self._process = process
        self._said_fd = said_fd

    def lost(self) -> ConnectError:
        """Return why the connection has ended; waits for ssh to leave."""
        status = self._leave()
        return ConnectError(_reason(self.host, status, self._said()))

    def close(self) -> None:
        """Close the connection; the far side ends what runs in its foreground."""
        self.connection.close()
        self._leave()
        if self._said_fd >= 0:
            os.close(self._said_fd)
            self._said_fd = -1

    def _leave(self) -> int:
        status = self._process.wait(_END_S)
        if status is None:
            self._process.kill()
            status = self._process.wait(None)
        assert status is not None  # noqa: S101 - waited for without end
        return status

    def _said(self) -> str:
        if self._said_fd < 0:
            return ""
        size = os.fstat(self._said_fd).st_size
        data = os.pread(self._said_fd, _SAID_BYTES, max(0, size - _SAID_BYTES))
        return data.decode(errors="replace")


def dial_host(
    host: str, *, named: str | None = None, autostart: bool = True
) -> FarDaemon:
    """Start an ssh to *host*; whether it gets there shows when something is read.

    Args:
        host: ``ssh://[user@]host[:port]``.
        named: Path of the one socket to use over there.
        autostart: Start the user's own daemon over there when none is running.

    Raises:
        ConnectError: There is no ssh here.
        InvalidParamsError: *host* is no address.
    """
    words = ssh_words(host)
    ssh = find_program("ssh")
    if ssh is None:
        raise ConnectError(
            f"cannot reach {host}: there is no ssh on PATH; install OpenSSH's client"
        )
    argv = ["/bin/sh", "-c", _DEAF, ssh]
    # No terminal; and not what a user's configuration may have for logins by hand.
    argv += ["-T", "-o", "RemoteCommand=none", "-o", "ClearAllForwardings=yes", *words]
    argv.append(far_command(named, autostart=autostart))
    said_fd = os.memfd_create("ssh-stderr", os.MFD_CLOEXEC)
    ours, theirs = socket.socketpair()
    try:
        process = Process(argv, theirs.fileno(), said_fd)
    except OSError as error:
        ours.close()
        os.close(said_fd)
        raise ConnectError(f"cannot start ssh: {error.strerror}") from None
    finally:
        theirs.close()
    return FarDaemon(host, ours, process, said_fd)


def _reason(host: str, status: int, said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    last = lines[-1] if lines else "it said nothing"
    if status == _SSH_FAILED:
        return _ssh_reason(host, said, last)
    if status in _NOT_FOUND:
        return (
            f"bashd is missing on {host}, or not on the PATH of commands that come by"
            f" ssh ({last}); install it there"
        )
    if status == _BAD_WORDS and "dial-stdio" in said:
        return f"bashd on {host} is too old to be reached by ssh; upgrade it there"
    if status == _BASHD_FAILED and lines:
        return f"on {host}: {last.removeprefix('bashd: ')}"
    if status < 0:
        return f"the ssh to {host} was ended by signal {-status}"
    return f"the connection to the daemon on {host} was closed; see its log there"


def _ssh_reason(host: str, said: str, last: str) -> str:
    by_hand = f"connect once by hand: ssh {shlex.join(ssh_words(host))}"
    if "HOST IDENTIFICATION HAS CHANGED" in said:
        return (
            f"the host key of {host} is not the one that is known; if it was changed"
            f" on purpose, remove the old one with ssh-keygen -R, then {by_hand}"
        )
    if "Host key verification failed" in said:
        return f"the host key of {host} is not known; {by_hand}"
    if "Permission denied" in said or "Too many authentication" in said:
        return f"{host} refused the login ({last}); {by_hand}"
    return f"ssh cannot reach {host}, or lost it: {last}"
