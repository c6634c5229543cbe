"""MCP over this process's stdin and stdout, one JSON message a line.

Like the SDK's transport, with three differences that matter here. A line that cannot be
understood is answered with an error instead of leaving its sender to wait for ever. A
lone surrogate, which JSON can spell and UTF-8 cannot, reaches the tools, which say what
is wrong with it. And a line has a greatest length, so no sender can fill the memory.

While serving, fd 0 is the null device and fd 1 is stderr: nothing that prints by
accident ends up between the messages.
"""

from __future__ import annotations

import json
import os
import stat
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, cast

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import (
    INVALID_REQUEST,
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

MAX_LINE_BYTES: Final = 48 * 1024 * 1024
"""A command of 8 MiB in which JSON spells every byte with six characters."""
_CHUNK_BYTES: Final = 64 * 1024

_Incoming = MemoryObjectSendStream[SessionMessage | Exception]
_Outgoing = MemoryObjectReceiveStream[SessionMessage]


@asynccontextmanager
async def stdio_streams() -> AsyncGenerator[
    tuple[
        MemoryObjectReceiveStream[SessionMessage | Exception],
        MemoryObjectSendStream[SessionMessage],
    ]
]:
    """Open the two message streams that `Server.run` takes."""
    in_fd, out_fd = _take_over_stdio()
    incoming, to_server = anyio.create_memory_object_stream[
        SessionMessage | Exception
    ]()
    from_server, outgoing = anyio.create_memory_object_stream[SessionMessage]()
    async with anyio.create_task_group() as group:
        group.start_soon(_read, in_fd, incoming, from_server.clone())
        group.start_soon(_write, out_fd, outgoing)
        async with to_server, from_server:
            yield to_server, from_server
        # The reader may still wait for a client that keeps its end open.
        group.cancel_scope.cancel()


def decode_line(line: bytes) -> JSONRPCMessage | ErrorData:
    """Return the message in *line*, or what to answer to one that holds none."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        return ErrorData(code=PARSE_ERROR, message=f"not a JSON text: {error}")
    if _has_no_id_to_answer(value):
        return ErrorData(
            code=INVALID_REQUEST,
            message="a request's id must be a string or an integer",
        )
    try:
        return jsonrpc_message_adapter.validate_python(value, by_name=False)
    except ValidationError:
        return ErrorData(code=INVALID_REQUEST, message="not a JSON-RPC 2.0 message")


def _has_no_id_to_answer(value: object) -> bool:
    # The SDK takes these for notifications, and their sender waits for ever.
    if not isinstance(value, dict):
        return False
    members = cast("dict[str, object]", value)
    if not {"id", "method"} <= members.keys():
        return False
    return isinstance(members["id"], bool) or not isinstance(members["id"], str | int)


def encode_line(message: JSONRPCMessage) -> bytes:
    """Return *message* as a line."""
    value = message.model_dump(by_alias=True, exclude_unset=True)
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode() + b"\n"
    except UnicodeEncodeError:
        # Something echoes a lone surrogate; escaped, it is still JSON.
        return json.dumps(value, separators=(",", ":")).encode() + b"\n"


class LineSplitter:
    """Cuts a byte stream into lines; a line that is too long comes out as None."""

    def __init__(self, max_bytes: int = MAX_LINE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._held = bytearray()
        self._skipping = False

    def feed(self, data: bytes) -> list[bytes | None]:
        """Take in bytes; returns the lines they complete, blank ones left out."""
        lines: list[bytes | None] = []
        *ends, rest = data.split(b"\n")
        for end in ends:
            lines += self._complete(end)
        self._hold(rest)
        return lines

    def _complete(self, end: bytes) -> list[bytes | None]:
        self._hold(end)
        line, skipped = bytes(self._held), self._skipping
        self._held.clear()
        self._skipping = False
        if skipped:
            return [None]
        return [line] if line.strip() else []

    def _hold(self, data: bytes) -> None:
        self._held += data
        if len(self._held) > self._max_bytes:
            self._held.clear()
            self._skipping = True


async def _read(
    fd: int, incoming: _Incoming, reply: MemoryObjectSendStream[SessionMessage]
) -> None:
    splitter = LineSplitter()
    # A file is always readable and cannot be waited for.
    waits = not stat.S_ISREG(os.fstat(fd).st_mode)
    async with incoming, reply:
        while True:
            if waits:
                await anyio.wait_readable(fd)
            data = os.read(fd, _CHUNK_BYTES)
            if not data:
                return
            for line in splitter.feed(data):
                await _hand_on(line, incoming, reply)


async def _hand_on(
    line: bytes | None,
    incoming: _Incoming,
    reply: MemoryObjectSendStream[SessionMessage],
) -> None:
    decoded = (
        ErrorData(
            code=INVALID_REQUEST,
            message=f"a message has at most {MAX_LINE_BYTES} bytes",
        )
        if line is None
        else decode_line(line)
    )
    try:
        if isinstance(decoded, ErrorData):
            error = JSONRPCError(jsonrpc="2.0", id=None, error=decoded)
            await reply.send(SessionMessage(error))
        else:
            await incoming.send(SessionMessage(decoded))
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        # The server has stopped serving; what comes now is for nobody.
        return


async def _write(fd: int, outgoing: _Outgoing) -> None:
    async with outgoing:
        async for item in outgoing:
            line = encode_line(item.message)
            try:
                # In a thread: a client that does not read must not stop the others'
                # cancellations from being heard.
                await anyio.to_thread.run_sync(partial(_write_all, fd, line))
            except BrokenPipeError:
                return


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _take_over_stdio() -> tuple[int, int]:
    in_fd, out_fd = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return in_fd, out_fd
