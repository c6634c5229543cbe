"""Composition root of the daemon: options, process, configuration, socket, service.

The order matters. The environment is forgotten and the process closed before anything
is read that commands might influence; a root daemon looks at its own code before it
does anything at all; the socket is ours before the service touches its folders, so that
two daemons never work in the same place; readiness is said when both stand.
"""

from __future__ import annotations

import argparse
import contextlib
import grp
import hashlib
import logging
import os
import pwd
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from bashd.core.errors import BashdError, ConfigError, HostError
from bashd.core.places import SYSTEM_SOCKET, state_folder, user_socket
from bashd.daemon import folders, handover, journal, process, trust
from bashd.daemon.adoption import AdoptionSocket
from bashd.daemon.configuration import load_config
from bashd.daemon.credentials import units_of
from bashd.daemon.lifecycle import End, Life, live
from bashd.daemon.listener import Listener, adopt, bind, inherit
from bashd.daemon.notify import Notifier, PassedFd, take_passed_fds
from bashd.daemon.peer import Exemptions
from bashd.daemon.quota import Bounds
from bashd.daemon.server import Server
from bashd.daemon.service import Service
from bashd.daemon.socket_folder import SocketPlace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bashd.core.config import Config

logger = logging.getLogger(__name__)

EXIT_CONFIG: Final = 2
"""A wrong option or configuration; starting again changes nothing."""
EXIT_FAILED: Final = 1
_STOP_MARGIN_S: Final = 10.0
"""Beyond the tasks' grace: ending cells and removing sessions' folders."""


@dataclass(frozen=True, slots=True)
class Options:
    """The command line."""

    socket: str | None
    config: str | None
    idle_exit_s: float | None
    ready_fd: int | None


def parse_options(argv: Sequence[str] | None = None) -> Options:
    """Parse the command line; exits with 2 when it is wrong."""
    parser = argparse.ArgumentParser(
        prog="bashd serve", description="Run the bashd daemon in the foreground."
    )
    parser.add_argument("--socket", metavar="PATH", help="listen on this path")
    parser.add_argument("--config", metavar="FILE", help="read this bashd.toml")
    parser.add_argument(
        "--idle-exit",
        metavar="SECONDS",
        type=_seconds,
        help="leave after that long without client and running task",
    )
    parser.add_argument(
        "--ready-fd",
        metavar="N",
        type=int,
        help="write 'ready' or the reason of a failure to this descriptor, and close it",
    )
    found = parser.parse_args(argv)
    socket = None if found.socket is None else os.path.abspath(found.socket)  # noqa: PTH100 - must not resolve links
    return Options(socket, found.config, found.idle_exit, found.ready_fd)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError("must be a positive number of seconds")
    return value


class Readiness:
    """Tells whoever started the daemon, once, whether it serves.

    Args:
        fd: Where; None: nobody asked. Taken over.
    """

    def __init__(self, fd: int | None) -> None:
        self._fd = fd
        if fd is not None:
            os.set_inheritable(fd, False)  # noqa: FBT003 - as os spells it

    def say(self, text: str) -> None:
        """Write one line and close; later calls do nothing."""
        fd, self._fd = self._fd, None
        if fd is not None:
            with contextlib.suppress(OSError):  # it may have left
                os.write(fd, f"{text}\n".encode(errors="replace"))
            os.close(fd)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a daemon; returns its exit status."""
    options = parse_options(argv)
    try:
        ready = Readiness(options.ready_fd)
    except OSError as error:
        return _fail(f"--ready-fd {options.ready_fd}: {error.strerror}", EXIT_CONFIG)
    try:
        return EXIT_FAILED if _run(options, ready) is End.UNCLEAN else 0
    except ConfigError as error:
        ready.say(error.message)
        return _fail(error.message, EXIT_CONFIG)
    except BashdError as error:
        ready.say(error.message)
        return _fail(error.message, EXIT_FAILED)


def _fail(message: str, status: int) -> int:
    sys.stderr.write(f"bashd: error: {message}\n")
    return status


def _run(options: Options, ready: Readiness) -> End:
    if os.geteuid() == 0:
        trust.check_own_code()
    given = handover.take(os.environ)
    manager = handover.manager_variables(os.environ)
    inherited = handover.Inherited()
    notifier = Notifier(os.environ)
    passed = take_passed_fds(os.environ)
    journal.set_up_logging(os.environ)
    open_files = process.harden()
    config = _load(options)
    listener = _listen(options, config, passed) if given is None else inherit(*given)
    try:
        state_dir = config.daemon.state_dir or _default_state(listener.path)
        places = folders.prepare(Path(state_dir), Path(listener.path))
        adoption = AdoptionSocket(
            Path(f"{listener.path}.adopt"),
            _group(config) if config.daemon.group else listener.gid,
        )
        end = trio.run(
            partial(
                *(_serve, options, config),
                listener=listener,
                places=places,
                adoption=adoption,
                notifier=notifier,
                ready=ready,
                inherited=inherited,
                open_files=open_files,
            )
        )
        if end is End.AGAIN:
            process.lower_fd_limit(open_files)
            handover.execute(listener, manager)
        if config.daemon.state_dir is None and state_dir != _main_state():
            # Of one socket among others: who asks for another one leaves no trace.
            folders.remove_unused(places.state_dir)
        return end
    finally:
        listener.release()
        notifier.close()


async def _serve(
    options: Options,
    config: Config,
    *,
    listener: Listener,
    places: folders.DaemonFolders,
    adoption: AdoptionSocket,
    notifier: Notifier,
    ready: Readiness,
    inherited: handover.Inherited,
    open_files: int,
) -> End:
    service = Service(config, places, adoption=adoption, open_files=open_files)
    server = Server(
        listener.socket,
        service,
        allow_root=config.daemon.allow_root,
        socket_gid=_group(config) if config.daemon.group else listener.gid,
        exemptions=_exemptions(config),
        # A ceiling may give a user more or fewer; whose it is shows a moment later.
        bounds=Bounds(connections_per_uid=_most_connections(config)),
        connections_of=lambda who: service.shares.limits(who).connections,
    )

    async def check() -> None:
        await trio.to_thread.run_sync(_check_successor, options)

    life = Life(
        listener=listener,
        service=service,
        server=server,
        notifier=notifier,
        announce=lambda: ready.say("ready"),
        check=check,
        stop_s=config.executor.grace_ms / 1000 + _STOP_MARGIN_S,
        idle_exit_s=options.idle_exit_s,
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(inherited.reap)
        end = await live(life)
        nursery.cancel_scope.cancel()
    return end


def _check_successor(options: Options) -> None:
    """Look whether a new daemon would start with what is on disk now.

    Raises:
        BashdError: It would not; says why.
    """
    if os.geteuid() == 0:
        trust.check_own_code()
    config = _load(options)
    _group(config)


def _most_connections(config: Config) -> int:
    ceilings = config.ceilings
    tables = (ceilings.everybody, *ceilings.groups.values(), *ceilings.users.values())
    given = (table.get("quotas.connections", 0) for table in tables)
    return max(config.limits.connections, *given)


def _load(options: Options) -> Config:
    config_home = os.environ.get("XDG_CONFIG_HOME", "")
    if not config_home.startswith("/"):
        config_home = f"{_home()}/.config"
    return load_config(options.config, root=os.geteuid() == 0, config_home=config_home)


def _listen(options: Options, config: Config, passed: tuple[PassedFd, ...]) -> Listener:
    if passed:
        if len(passed) != 1:
            raise HostError(
                f"the service manager passed {len(passed)} descriptors, one socket is"
                " expected; the socket unit needs exactly one ListenStream="
            )
        return adopt(passed[0].fd)
    return bind(SocketPlace(options.socket or _default_socket(), _group(config)))


def _default_socket() -> str:
    uid = os.geteuid()
    if uid == 0:
        return SYSTEM_SOCKET
    return user_socket(os.environ, uid=uid, home=_home(), owner_of=_owner_of)


def _default_state(socket_path: str) -> str:
    """Return the state folder; daemons on other sockets have one each inside it."""
    base = _main_state()
    if socket_path == _default_socket():
        return base
    digest = hashlib.sha256(os.fsencode(socket_path)).hexdigest()[:12]
    return f"{base}/at-{digest}"


def _main_state() -> str:
    return state_folder(os.environ, uid=os.geteuid(), home=_home())


def _owner_of(folder: str) -> int | None:
    try:
        return Path(folder).stat().st_uid
    except OSError:
        return None


def _home() -> str:
    home = os.environ.get("HOME", "")
    return home if home.startswith("/") else pwd.getpwuid(os.geteuid()).pw_dir


def _group(config: Config) -> int | None:
    """Return the gid of ``[daemon] group``; None for a user daemon, or without one."""
    name = config.daemon.group
    if name is None or os.geteuid() != 0:
        return None
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise ConfigError(
            f"{config.source}: daemon.group: there is no group {name!r};"
            f" groupadd --system {name}"
        ) from None


def _exemptions(config: Config) -> Exemptions:
    own = units_of(os.getpid())
    exemptions = Exemptions(config.daemon.confined_callers, own)
    for name in sorted(exemptions.ignored):
        logger.warning(
            "%s: daemon.confined_callers: %s holds the daemon and so every command;"
            " it exempts nobody",
            config.source,
            name,
        )
    return exemptions
