"""``bashd serve``: become the daemon.

Only hands over: the daemon is a program of its own, which this process turns into. With
``--detach`` it first leaves the caller's process tree, which a client needs that starts
a daemon for its user.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from bashd.cli.parsing import add_command
from bashd.core.errors import HostError

if TYPE_CHECKING:
    import argparse

    from bashd.cli.parsing import Subparsers

_DESCRIPTION = """\
Run the daemon in the foreground until it gets SIGTERM.

You rarely need this: a client starts a daemon for you, and a machine for many users
has a systemd unit.
"""

_EPILOG = """\
examples:
  bashd serve
  bashd serve --socket /run/user/1000/other.sock --idle-exit 60
  bashd serve --config ./bashd.toml

It says `listening on PATH` on stderr once it accepts.

exit status:
  0 it was told to stop, or had nothing to do, and left nothing behind; 1 it could not
  serve, or not stop cleanly; 2 an option or the configuration is wrong
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add ``serve``."""
    parser = add_command(
        subparsers,
        "serve",
        summary="run the daemon",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.add_argument("--socket", metavar="PATH", help="where to listen")
    parser.add_argument("--config", metavar="FILE", help="bashd.toml to use")
    parser.add_argument(
        "--idle-exit", metavar="SECONDS", help="leave after this time without work"
    )
    parser.add_argument(
        "--ready-fd",
        metavar="N",
        type=int,
        help="write `ready` to this descriptor once it accepts, or why it does not",
    )
    parser.add_argument("--detach", action="store_true", help="go on in the background")


def run(args: argparse.Namespace) -> int:
    """Turn into the daemon; returns only in the caller's process of ``--detach``."""
    if args.detach and os.fork():
        return 0
    # -P: a service must not import from whatever folder it was started in.
    argv = [sys.executable, "-P", "-m", "bashd.daemon"]
    for option in ("socket", "config", "idle_exit", "ready_fd"):
        value = getattr(args, option)
        if value is not None:
            argv += [f"--{option.replace('_', '-')}", str(value)]
    if args.ready_fd is not None:
        os.set_inheritable(args.ready_fd, True)  # noqa: FBT003 - its only argument
    try:
        os.execv(sys.executable, argv)  # noqa: S606 - no shell is wanted
    except OSError as error:
        raise HostError(f"cannot start {sys.executable}: {error.strerror}") from None
