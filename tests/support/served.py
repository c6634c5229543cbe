"""A service without sessions or cells, and one connection to it, for daemon tests.

The connection is real: a socket pair, credentials and all, with `Connection` on one
side. Only what handlers do is up to the test.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Any

import trio

from bashd.core.errors import Refused
from bashd.core.model import Mode
from bashd.daemon.access import ConfinedAs
from bashd.daemon.api import Connection
from bashd.daemon.call import Call, Handler
from bashd.daemon.credentials import (
    Standing,
    ask_for_credentials,
    connector_of,
    connector_pidfd,
    groups_of,
)
from bashd.daemon.identity import Identity
from bashd.daemon.peer import Caller, Senders
from bashd.daemon.quota import Bounds, Quota
from bashd.protocol.messages import ExecutorDefaults, InitializeResult, StatusResult

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {"protocol": 1},
}


async def status(_call: Call, _params: object) -> StatusResult:
    """Answer ``daemon.status`` at once."""
    return StatusResult("test", os.getpid(), 0.0, 0, 0, 0, None)


@dataclass
class SmallService:
    """Handlers of a test's choice."""

    handlers: dict[str, Handler] = field(
        default_factory=lambda: {"daemon.status": status}
    )
    cells: dict[int, ConfinedAs] = field(default_factory=dict)
    tasks: dict[str, ConfinedAs] = field(default_factory=dict)
    refusals: list[tuple[int, str, str]] = field(
        default_factory=list[tuple[int, str, str]]
    )

    def initialize_result(self, call: Call) -> InitializeResult:
        """Say something."""
        defaults = ExecutorDefaults("/", 1, 1, 1, 1, 1, Mode.READ_ONLY)
        return InitializeResult(1, "test", os.getpid(), call.caller.uid, defaults)

    def cell_of(self, pid: int) -> ConfinedAs | None:
        """Look *pid* up in `cells`."""
        return self.cells.get(pid)

    def reach_of_task(self, caller: Caller, task_id: str) -> ConfinedAs | None:
        """Look the task up in `tasks`."""
        del caller
        return self.tasks.get(task_id)

    def refused(self, caller: Caller, method: str, error: Refused) -> None:
        """Keep it in `refusals`."""
        self.refusals.append((caller.uid, method, error.code))


def own_identity() -> Identity:
    """Return the identity of the test process."""
    return Identity(os.getuid(), os.getgid(), tuple(os.getgroups()), "me", "/")


class Wire:
    """The client's end: whole JSON objects."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = trio.socket.from_stdlib_socket(sock)
        self._buffer = b""

    async def send(self, *messages: dict[str, Any]) -> None:
        """Send messages in one write."""
        await self.send_raw(
            b"".join(json.dumps(message).encode() + b"\n" for message in messages)
        )

    async def send_raw(self, data: bytes) -> None:
        """Send bytes, or as many as the daemon waits for; `receive` tells why."""
        view = memoryview(data)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while view:
                view = view[await self.socket.send(view) :]

    async def request(
        self, request_id: int | str, method: str, /, **params: Any
    ) -> None:
        """Send one request."""
        await self.send(request(request_id, method, **params))

    async def notify(self, method: str, /, **params: Any) -> None:
        """Send one notification."""
        await self.send({"jsonrpc": "2.0", "method": method, "params": params})

    async def receive_all(self) -> list[dict[str, Any]]:
        """Return what comes until the daemon closes the connection."""
        received: list[dict[str, Any]] = []
        with contextlib.suppress(EOFError):
            while True:
                received.append(await self.receive())
        return received

    async def receive(self) -> dict[str, Any]:
        """Return the next message.

        Raises:
            EOFError: The daemon closed the connection.
        """
        while b"\n" not in self._buffer:
            try:
                data = await self.socket.recv(65536)
            except ConnectionResetError:
                data = b""  # closed while something of ours was unread
            if not data:
                raise EOFError
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)

    async def ask(self, request_id: int | str, method: str, /, **params: Any) -> Any:
        """Send one request and return the next message's result or error code."""
        await self.request(request_id, method, **params)
        answer = await self.receive()
        assert answer["id"] == request_id
        return answer["result"] if "result" in answer else code_of(answer)

    def close(self) -> None:
        """Leave."""
        self.socket.close()


def request(request_id: int | str, method: str, /, **params: Any) -> dict[str, Any]:
    """Return one request."""
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}


def code_of(answer: dict[str, Any]) -> str:
    """Return the stable code of an error answer."""
    return answer["error"]["data"]["code"]


@contextlib.asynccontextmanager
async def connected(
    service: SmallService,
    *,
    bounds: Bounds | None = None,
    quota: Quota | None = None,
    judge: Callable[[int, Standing], ConfinedAs | None] = lambda _pid, _: None,
    greet: bool = True,
) -> AsyncGenerator[Wire]:
    """Serve one connection; *greet* gets the handshake out of the way."""
    bounds = bounds or Bounds()
    quota = quota or Quota(bounds)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(0)
        theirs.settimeout(0)
        ask_for_credentials(ours)
        connector = connector_of(ours)
        assert frozenset(groups_of(ours)) == frozenset(os.getgroups())
        senders = Senders(connector, own_identity(), judge, connector_pidfd(ours))
        holding = quota.admit(os.getuid())
        connection = Connection(
            ours,
            number=1,
            senders=senders,
            dispatch=service,
            holding=holding,
            bounds=bounds,
        )
        async with trio.open_nursery() as nursery:

            async def serve() -> None:
                await connection.serve()
                senders.close()
                quota.release(holding)
                trio.lowlevel.notify_closing(ours)
                ours.close()

            nursery.start_soon(serve)
            wire = Wire(theirs)
            if greet:
                await wire.send(INITIALIZE)
                assert (await wire.receive())["result"]["protocol"] == 1
            yield wire
            wire.close()
