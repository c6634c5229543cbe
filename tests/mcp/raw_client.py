"""A client that writes lines as they are, for what no SDK would send."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

LOCAL_SERVER = [sys.executable, "-m", "tests.mcp.local_server"]
HANDSHAKE = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "raw", "version": "1"},
}


class RawClient:
    """Writes lines as they are and reads what comes."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def send(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def ask(self, request_id: int, method: str, params: object) -> dict[str, Any]:
        self.begin(request_id, method, params)
        return self.receive()

    def begin(self, request_id: int, method: str, params: object) -> None:
        message = {"jsonrpc": "2.0", "id": request_id, "method": method}
        self.send(json.dumps({**message, "params": params}).encode())

    def bash(self, request_id: int, command: str, **args: Any) -> dict[str, Any]:
        full = {"command": command, "description": "d", **args}
        return self.ask(request_id, "tools/call", {"name": "bash", "arguments": full})


@contextmanager
def raw_client(
    argv: Sequence[str] = tuple(LOCAL_SERVER), **process: Any
) -> Generator[RawClient]:
    """Start a server, shake hands, and at the end have it leave."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    started = subprocess.Popen(argv, **pipes, **process)
    with cast("subprocess.Popen[bytes]", started) as server:
        client = RawClient(server)
        client.ask(0, "initialize", HANDSHAKE)
        yield client
        assert server.stdin is not None
        server.stdin.close()
        assert server.wait(10) == 0
