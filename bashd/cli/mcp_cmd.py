"""``bashd mcp``: the tools for a model's client; ``bashd mcp-config``: how to tell it.

The MCP SDK takes most of a second to load, so it is imported only once there is
something to serve.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import shlex
import shutil
import sys
import threading
from argparse import ArgumentTypeError
from typing import TYPE_CHECKING, Any, Final

from bashd.cli.parsing import add_client_options, add_command
from bashd.cli.report import print_text
from bashd.cli.run_args import MODES
from bashd.client.reach import chosen_host, reach_daemon
from bashd.core.errors import BashdError, HostError
from bashd.core.model import Mode

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping
    from types import ModuleType

    from bashd.cli.parsing import Subparsers

_DESCRIPTION = """\
Serve the tools bash, bash_output and bash_kill to one MCP client on stdin and stdout.

The client starts this command; `bashd mcp-config` prints what to tell it. Without
--session it opens a session of its own, which ends some time after it was last used.
"""

_EPILOG = """\
examples:
  bashd mcp --cwd ~/project --mode workspace-write
  bashd mcp --session $id                come back to a session and its tasks
  bashd mcp --foreground-limit 50        for clients that give up after a minute

exit status:
  0 the client has gone, 2 the words make no sense, 125 bashd failed
"""

_CONFIG_DESCRIPTION = """\
Print the configuration that makes a client start `bashd mcp`, to paste where it belongs.
"""

_CONFIG_EPILOG = """\
examples:
  bashd mcp-config claude | sh
  bashd mcp-config codex --mode workspace-write >> ~/.codex/config.toml
  bashd mcp-config gemini                for ~/.gemini/settings.json
  bashd mcp-config zed                   for Zed's settings.json
  bashd mcp-config json                  for a project's .mcp.json

exit status:
  0 done, 2 the words make no sense
"""

_FORWARDED: Final = (
    "cwd",
    "mode",
    "policy",
    "session",
    "foreground_limit",
    "socket",
    "host",
)
"""Options of ``mcp`` with a value that ``mcp-config`` passes on."""
_CODEX_TIMEOUT_S: Final = 660
"""Codex gives up on a tool after 60 s by default; a command may run for 600."""


def add_parser(subparsers: Subparsers) -> None:
    """Add ``mcp`` and ``mcp-config``."""
    server = add_command(
        subparsers,
        "mcp",
        summary="serve the tools to an MCP client",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    _add_server_options(server)
    config = add_command(
        subparsers,
        "mcp-config",
        summary="print the configuration for an MCP client",
        description=_CONFIG_DESCRIPTION,
        epilog=_CONFIG_EPILOG,
    )
    config.add_argument(
        "client", choices=list(_CONFIGS), metavar="CLIENT", help=", ".join(_CONFIGS)
    )
    _add_server_options(config)


def run(args: argparse.Namespace) -> int:
    """Do it; returns the exit status."""
    if args.subcommand == "mcp-config":
        print_text(_CONFIGS[args.client](_server_argv(args)))
        return 0
    _serve(args)
    return 0


def _add_server_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cwd", metavar="DIR", help="root of the new session")
    parser.add_argument(
        "--mode", metavar="MODE", choices=MODES, help=f"its mode: {', '.join(MODES)}"
    )
    parser.add_argument("--policy", metavar="NAME", help="its policy")
    parser.add_argument(
        "--session", metavar="ID", help="come back to this session instead"
    )
    parser.add_argument(
        "--foreground-limit",
        metavar="SECONDS",
        type=_seconds,
        help="let a foreground command that runs longer go on in the background",
    )
    add_client_options(parser)


def _serve(args: argparse.Namespace) -> None:
    _start_daemon_meanwhile(args)
    server = _load_server()
    limit_s = args.foreground_limit
    reach = server.Reach(
        socket=args.socket,
        host=args.host,
        cwd=args.cwd,
        mode=None if args.mode is None else Mode(args.mode),
        policy=args.policy,
        session=args.session,
        autostart=args.autostart,
    )
    server.main(
        server.Options(reach, None if limit_s is None else float(limit_s) * 1000)
    )


def _start_daemon_meanwhile(args: argparse.Namespace) -> None:
    """Have a daemon start, if there is none, while the SDK is loading.

    Both take most of a second. What goes wrong here goes wrong again when the server
    connects, and is told then.
    """
    if chosen_host(args.host, args.socket, os.environ) is not None:
        return

    def start() -> None:
        with contextlib.suppress(BashdError, OSError):
            reach_daemon(args.socket, autostart=args.autostart).close()

    threading.Thread(target=start, daemon=True).start()


def _load_server() -> ModuleType:
    # The SDK makes some hundred thousand objects that all stay; looking for garbage
    # among them meanwhile takes a third of the start.
    gc.disable()
    try:
        # By name, as the table of commands does: the front doors are siblings, and
        # this one only opens the other.
        server = importlib.import_module("bashd.mcp.main")
    except ModuleNotFoundError as error:
        if error.name not in {"mcp", "mcp_types"}:
            raise
        raise HostError(
            "bashd mcp needs the MCP SDK; install it with: pip install 'bashd[mcp]'"
        ) from None
    gc.freeze()
    gc.enable()
    return server


def _server_argv(args: argparse.Namespace) -> list[str]:
    # A client may have another PATH; without one of our own name on ours, none will do.
    own = ["bashd"] if shutil.which("bashd") else [sys.executable, "-m", "bashd"]
    words = [*own, "mcp"]
    for option in _FORWARDED:
        value = getattr(args, option)
        if value is not None:
            words += [f"--{option.replace('_', '-')}", str(value)]
    return words if args.autostart else [*words, "--no-autostart"]


def _claude(argv: list[str]) -> str:
    return f"claude mcp add bashd -- {shlex.join(argv)}\n"


def _codex(argv: list[str]) -> str:
    # JSON strings and arrays of strings are TOML as well.
    return (
        "[mcp_servers.bashd]\n"
        f"command = {json.dumps(argv[0])}\n"
        f"args = {json.dumps(argv[1:])}\n"
        f"tool_timeout_sec = {_CODEX_TIMEOUT_S}\n"
    )


def _json(key: str) -> Callable[[list[str]], str]:
    def render(argv: list[str]) -> str:
        servers: dict[str, Any] = {"bashd": {"command": argv[0], "args": argv[1:]}}
        return json.dumps({key: servers}, indent=2) + "\n"

    return render


_CONFIGS: Final[Mapping[str, Callable[[list[str]], str]]] = {
    "claude": _claude,
    "codex": _codex,
    "gemini": _json("mcpServers"),
    "zed": _json("context_servers"),
    "json": _json("mcpServers"),
}


def _seconds(text: str) -> str:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ArgumentTypeError(f"{text!r} is not a positive number of seconds")
    return text
