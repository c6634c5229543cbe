"""Re-executing the daemon in place: what it hands to the program that replaces it.

Same process, so the service manager, the pid and the children stay; new program, so
code and configuration are what is on disk now. The listening socket and the lock on
its path go along as descriptors: who connects meanwhile waits in the backlog, and
nobody else can take the path. Everything else closes on exec: keepers see their daemon
gone, dial home and are adopted, as after a crash.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

import trio

from bashd.core.errors import HostError
from bashd.daemon import tree

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping, Sequence

    from bashd.daemon.listener import Listener

logger = logging.getLogger(__name__)

_VARIABLE: Final = "BASHD_HANDOVER"
_FROM_MANAGER: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "JOURNAL_STREAM")
"""What a service manager says at start and the daemon forgets at once."""
_READY: Final = "--ready-fd"


class Handover(NamedTuple):
    """Descriptors a daemon has left to its successor."""

    socket_fd: int
    owner_fd: int
    """Lock of the socket's path; -1 where the service manager owns it."""


def take(environ: MutableMapping[str, str]) -> Handover | None:
    """Return what this process left to itself, and forget the variable.

    Raises:
        HostError: The variable makes no sense.
    """
    text = environ.pop(_VARIABLE, None)
    if text is None:
        return None
    words = text.split(":")
    if len(words) != 1 + len(Handover._fields) or words[0] != str(os.getpid()):
        return None  # somebody else's, passed on by accident
    try:
        found = Handover(*map(int, words[1:]))
        for fd in found:
            if fd >= 0:
                os.set_inheritable(fd, False)  # noqa: FBT003 - as os spells it
    except (OSError, ValueError) as error:
        raise HostError(f"{_VARIABLE}={text}: {error}") from None
    return found


def manager_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the service manager's variables, for `execute`."""
    return {name: environ[name] for name in _FROM_MANAGER if name in environ}


def without_ready_fd(argv: Sequence[str]) -> list[str]:
    """Return a command line without its ``--ready-fd``: that was said, and is closed."""
    kept: list[str] = []
    words = iter(argv)
    for word in words:
        if word == _READY:
            next(words, None)
        elif not word.startswith(f"{_READY}="):
            kept.append(word)
    return kept


def execute(listener: Listener, manager: Mapping[str, str]) -> NoReturn:
    """Become a new daemon on the same socket.

    Args:
        listener: Handed over.
        manager: Of `manager_variables`, when this daemon started.

    Raises:
        HostError: The program cannot be executed any more.
    """
    fds = Handover(*listener.hand_over())
    words = ":".join(map(str, (os.getpid(), *fds)))
    environ = {**os.environ, **manager, _VARIABLE: words}
    argv = without_ready_fd(sys.orig_argv)
    try:
        os.execve(sys.executable, argv, environ)  # noqa: S606 - no shell is wanted
    except OSError as error:
        raise HostError(
            f"cannot become {sys.executable}: {error.strerror}; tasks live on for the"
            " orphan timeout, start the daemon within it"
        ) from None


class Inherited:
    """Children of the program this one replaced: runners, whose cells come back.

    Made before this program has any of its own.
    """

    def __init__(self) -> None:
        self._pidfds: list[tuple[int, int]] = []
        for pid in tree.children(os.getpid()):
            try:
                self._pidfds.append((pid, os.pidfd_open(pid)))
            except OSError as error:
                logger.warning("child %d: %s", pid, error)

    async def reap(self) -> None:
        """Reap each when it ends."""
        async with trio.open_nursery() as nursery:
            for pid, pidfd in self._pidfds:
                nursery.start_soon(_reap, pid, pidfd)


async def _reap(pid: int, pidfd: int) -> None:
    try:
        await trio.lowlevel.wait_readable(pidfd)
        os.waitpid(pid, os.WNOHANG)  # noqa: ASYNC222 - it does not wait
    except ChildProcessError:
        return
    finally:
        os.close(pidfd)
