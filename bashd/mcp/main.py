"""``bashd mcp`` once its words are parsed: daemon, session, server, stdio."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio

from bashd.mcp.server import Composition, build_server
from bashd.mcp.stdio import stdio_streams
from bashd.mcp.steady import Reach, open_steady
from bashd.tools.daemon_session import daemon_agent, policy_hook

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says."""

    reach: Reach
    foreground_limit_ms: float | None = None


def main(options: Options) -> None:
    """Serve one client until it has gone.

    Raises:
        BashdError: There is no daemon, no such session, or an option cannot be met.
    """
    # The front doors run on asyncio; only the daemon is trio.
    anyio.run(_serve, options, backend="asyncio")


async def _serve(options: Options) -> None:
    async with open_steady(options.reach) as client:
        composition = Composition(
            client,
            lambda inject: daemon_agent(client, inject),
            queue=client,
            notices=client,
            hooks=(policy_hook(client),),
            foreground_limit_ms=options.foreground_limit_ms,
        )
        await serve_stdio(await build_server(composition))


async def serve_stdio(server: Server[Any]) -> None:
    """Serve the client at the other end of stdin and stdout until it closes them."""
    async with stdio_streams() as (incoming, outgoing):
        options = server.create_initialization_options()
        await server.run(incoming, outgoing, options)
