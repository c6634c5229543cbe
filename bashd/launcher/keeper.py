"""Start of a cell: the process that becomes the keeper goes behind the outer walls.

It reads the cell's settings from its control socket, gives up what the peer must not
have, puts on the outer Landlock layer and executes the compiled program that everything
else in the cell is; see the package docstring for the whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import marshal
import os
import signal
import socket
import sys
from typing import NamedTuple, NoReturn

# Imported before privileges are given up.
from landlock import plumbing  # noqa: F401  # pyright: ignore[reportUnusedImport]

from . import confine, kernel, wire
from .channel import read_payload, receive
from .confine import Settings, StepError, prctl, step

_CONFIG_FDS = 4
_SIGNALS = [number for number in range(1, 65) if number not in (9, 19, 32, 33)]
"""All but SIGKILL and SIGSTOP, which none can change, and glibc's two own."""
_FIRST_FD = 3
"""Where ``cell.h`` has its control socket; the others follow in its order."""


class Program(NamedTuple):
    """What the daemon has sent beside the settings; descriptors of sealed memfds."""

    keeper_fd: int
    """The executable."""
    filter_fd: int
    """Compiled seccomp filter that the zygote puts on; empty for none."""
    spare_filter_fd: int
    """That each spare puts on beside it; likewise."""


def _ignore_signals() -> None:
    """Ignore every signal that can be ignored, except SIGCHLD's default."""
    for number in _SIGNALS:
        if number != signal.SIGCHLD:
            signal.signal(number, signal.SIG_IGN)


def _set_up(settings: Settings) -> None:
    prctl.set_child_subreaper(1)
    if settings.become is not None:
        uid, gid, groups = settings.become
        confine.become_peer(uid, gid, groups, confined=settings.confined)
    elif settings.confined:
        with step("capset"):
            # In a user namespace there may be no right to drop the bounding set; what
            # it allows there reaches nothing outside, and hello reports it.
            with contextlib.suppress(PermissionError):
                kernel.drop_bounding_set()
            kernel.clear_capabilities()
    confine.seal_process(confined=settings.confined)


def _restrict(settings: Settings) -> tuple[int, int]:
    """Enter the outer layer; return what zygote and spares add, -1 for nothing."""
    rules = settings.rules()
    if rules is None:
        return -1, -1
    with step("landlock-outer"):
        outer = confine.build_ruleset(rules, scoped=True)
        outer.restrict_self(settings.log_flags)
    inner_fd = -1
    if rules.handled:
        # A layer that handles nothing is no layer; the scopes are the outer one's.
        with step("landlock-inner"):
            inner_fd = confine.build_ruleset(rules, scoped=False).fd
    # The zygote's own layer has the same rules: what matters of it is its scope.
    return inner_fd, outer.fd if settings.own_layer else -1


def _configuration(settings: Settings, inner_fd: int, layer_fd: int) -> bytes:
    rules, home = settings.rules(), settings.home
    scoped = rules is not None and bool(rules.scoped)
    # kill(-1) stays in the cell in a pid namespace of its own, or in a signal scope.
    is_alone = os.getpid() == 1 or (
        rules is not None and bool(rules.scoped & kernel.LANDLOCK_SCOPE_SIGNAL)
    )
    return wire.cell_configuration(
        has_ruleset=inner_fd >= 0,
        has_layer=layer_fd >= 0,
        log_flags=settings.log_flags,
        landlock_abi=kernel.landlock_abi() if rules is not None else 0,
        landlock_scoped=scoped,
        may_signal_all=settings.confined and is_alone,
        bash=os.fsencode(settings.bash),
        home=None
        if home is None
        else (
            os.fsencode(home["name"]),
            home["uid"],
            home["cell"].encode(),
            home["secret"].encode(),
            int(home["timeout_s"] * 1000),
        ),
        mounts=[
            (os.fsencode(path), dev, ino, read_only)
            for path, dev, ino, read_only in settings.mounts
        ],
    )


def _execute(program: Program, fds: list[int]) -> NoReturn:
    """Become the compiled program; *fds* get numbers from `_FIRST_FD` on, in order."""
    behind = _FIRST_FD + len(fds)
    # Some have been given numbers that others are to get.
    aside = [
        fd if fd < 0 else fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, behind)
        for fd in (*fds, program.keeper_fd)
    ]
    kernel.close_range(_FIRST_FD, behind - 1)
    for number, fd in enumerate(aside[:-1], _FIRST_FD):
        if fd >= 0:
            os.dup2(fd, number)
    # Whatever else is open it closes itself.
    os.execve(aside[-1], ["bashd-keeper"], {})  # noqa: S606 - it is our own


def _become_keeper(
    control: socket.socket, settings: Settings, program: Program, home_fd: int
) -> NoReturn:
    _set_up(settings)
    inner_fd, layer_fd = _restrict(settings)
    if home_fd < 0:
        settings = settings._replace(home=None)
    os.chdir("/")
    with step("launcher"):
        config_fd = os.memfd_create("cell", os.MFD_CLOEXEC)
        os.write(config_fd, _configuration(settings, inner_fd, layer_fd))
        filters = [program.filter_fd, program.spare_filter_fd]
        fds = [control.fileno(), inner_fd, layer_fd, home_fd, config_fd, *filters]
        _execute(program, fds)


def main(control_fd: int) -> NoReturn:
    """Begin a cell over the control socket *control_fd*."""
    _ignore_signals()
    control = socket.socket(fileno=control_fd)
    os.set_inheritable(control_fd, False)  # noqa: FBT003 - as os spells it
    try:
        message, fds = receive(control, _CONFIG_FDS + 1)
        if message[:1] != wire.CONFIG or len(fds) < _CONFIG_FDS:
            os._exit(1)
        settings = Settings(**marshal.loads(read_payload(fds[0])))  # noqa: S302 - the daemon's
        program = Program(*fds[1:_CONFIG_FDS])
        home_fd = fds[_CONFIG_FDS] if len(fds) > _CONFIG_FDS else -1
        _become_keeper(control, settings, program, home_fd)
    except StepError as error:
        control.send(wire.Failed(error.step, error.reason).encode())
    except (OSError, wire.WireError, ValueError, TypeError) as error:
        with contextlib.suppress(OSError):
            control.send(wire.Failed("launcher", repr(error)).encode())
    os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]))
