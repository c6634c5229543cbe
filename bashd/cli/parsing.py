"""What the parsers of all subcommands but ``run`` have in common."""

from __future__ import annotations

from argparse import RawDescriptionHelpFormatter
from typing import TYPE_CHECKING

from bashd.client.link import Link

if TYPE_CHECKING:
    import argparse

    # argparse has no public name for what add_subparsers returns.
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]  # pyright: ignore[reportPrivateUsage] # noqa: SLF001


def add_command(
    subparsers: Subparsers,
    name: str,
    *,
    summary: str,
    description: str,
    epilog: str,
) -> argparse.ArgumentParser:
    """Add a subcommand whose texts are shown as they are written."""
    return subparsers.add_parser(
        name,
        help=summary,
        description=description,
        epilog=epilog,
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def add_socket_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which daemon to talk to."""
    parser.add_argument(
        "--socket",
        metavar="PATH",
        help="talk to the daemon on this socket and no other",
    )
    parser.add_argument(
        "--host",
        metavar="URL",
        help="talk to another machine's daemon: ssh://[user@]host[:port]",
    )


def add_client_options(parser: argparse.ArgumentParser) -> None:
    """Add what every command has that talks to a daemon."""
    add_socket_options(parser)
    parser.add_argument(
        "--no-autostart",
        action="store_false",
        dest="autostart",
        help="fail when no daemon is running",
    )


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--json``: then one object on stdout is all that is printed."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def open_link(args: argparse.Namespace) -> Link:
    """Return a connection to the daemon that *args* ask for.

    Raises:
        BashdError: None can be reached.
    """
    return Link.reach(
        args.socket,
        host=args.host,
        autostart=args.autostart,
        client=f"bashd {args.subcommand}",
    )
