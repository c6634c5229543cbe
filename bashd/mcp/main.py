"""Serves one MCP client on stdin and stdout until it has gone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bashd.mcp.stdio import stdio_streams

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server


async def serve_stdio(server: Server[Any]) -> None:
    """Serve the client at the other end of stdin and stdout until it closes them."""
    async with stdio_streams() as (incoming, outgoing):
        options = server.create_initialization_options()
        await server.run(incoming, outgoing, options)
