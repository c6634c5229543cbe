"""`bashd mcp` without a daemon: the server on stdio over an in-process executor.

Run as ``python -m tests.mcp.local_server [WORKSPACE]``; a workspace confines to it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import anyio

from bashd.mcp.main import serve_stdio
from bashd.mcp.server import Composition, build_server
from bashd.tools.agent import Agent
from tests.mcp.serving import local


async def _main() -> None:
    workspace = Path(sys.argv[1]) if sys.argv[1:] else None
    async with local(workspace, grace_ms=500) as executor:
        composition = Composition(executor, lambda inject: Agent("s", inject=inject))
        await serve_stdio(await build_server(composition))


if __name__ == "__main__":
    anyio.run(_main)
