"""The async end of the wire: one reader, one writer, many callers.

Theory of operation. Callers put whole lines into an outbox and wait for an event; the
writer sends the lines, so that a caller that is cancelled never leaves half a line on
the wire; the reader hands answers to whom they belong and notifications to one
function. When the daemon goes, every waiting caller gets a `ConnectError`, and so does
every later one. Runs on asyncio and trio alike, through anyio.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from bashd.client.link import (
    HELLO_ID,
    check_hello,
    encode_request,
    hello_line,
    nonsense,
    result_of,
)
from bashd.client.live import decode_output
from bashd.core.errors import BashdError, ConnectError, FrameError
from bashd.protocol.codec import from_wire
from bashd.protocol.framing import Framer
from bashd.protocol.messages import InitializeResult

if TYPE_CHECKING:
    from collections.abc import Callable

    from anyio.abc import ByteStream

    from bashd.client.calls import Call
    from bashd.client.remote import FarDaemon
    from bashd.core.executor import OutputSink

T = TypeVar("T")

_CHUNK_BYTES = 256 * 1024
"""Bytes asked of the socket at once; a burst of live output in one call."""


class Pending:
    """A request whose answer has not come; see `Connection.begin`."""

    def __init__(self, request_id: int, sink: OutputSink | None) -> None:
        self.request_id = request_id
        self.sink = sink
        self.arrived = anyio.Event()
        self.result: Any = None
        self.error: Exception | None = None

    def settle(self, result: object, error: Exception | None) -> None:
        """Take the outcome; the first one counts."""
        if not self.arrived.is_set():
            self.result, self.error = result, error
            self.arrived.set()


class Connection:
    """Requests and answers over *stream*; `run` must be running for anything to move.

    Args:
        stream: A connected stream; the connection owns it.
        on_notification: Called with method and params of what the daemon sends unasked,
            except live output, which goes to the sink of its request.
        far: What leads to another machine, when *stream* does.
    """

    def __init__(
        self,
        stream: ByteStream,
        on_notification: Callable[[str, dict[str, Any]], None],
        *,
        far: FarDaemon | None = None,
    ) -> None:
        self._stream = stream
        self._far = far
        self._on_notification = on_notification
        self._pending: dict[int, Pending] = {}
        self._last_id = HELLO_ID
        self._lost: BashdError | None = None
        self.lost = anyio.Event()
        """Set once the daemon is gone or said its last word."""
        # No bound of its own: each caller waits for its answer before the next line.
        self._outbox, self._lines = anyio.create_memory_object_stream[bytes](math.inf)

    async def run(self) -> None:
        """Move lines both ways until cancelled or the daemon is gone."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._write)
                self._fail_all(await self._read())
                tasks.cancel_scope.cancel()
        finally:
            self._fail_all(ConnectError("the connection was closed"))
            self._outbox.close()
            self._lines.close()
            with anyio.CancelScope(shield=True):
                await self._stream.aclose()
                if self._far is not None:
                    await anyio.to_thread.run_sync(self._far.close)

    async def greet(self, client: str) -> InitializeResult:
        """Do the handshake.

        Raises:
            BashdError: The daemon refuses us, or is gone.
        """
        pending = self._expect(HELLO_ID, None)
        self._outbox.send_nowait(hello_line(client))
        result = await self._outcome(pending)
        return from_wire(InitializeResult, check_hello(result))

    async def ask(self, call: Call[T]) -> T:
        """Send *call* and wait for its answer.

        Raises:
            BashdError: The daemon's error, as the class it raised.
        """
        return await self.finish(self.begin(call), call)

    def begin(self, call: Call[T], sink: OutputSink | None = None) -> Pending:
        """Send *call* without waiting; live output of it goes to *sink*.

        Raises:
            BashdError: The request cannot be sent, or the daemon is gone.
        """
        if self._lost is not None:
            raise self._lost
        self._last_id += 1
        line = encode_request(self._last_id, call.method, call.params)
        pending = self._expect(self._last_id, sink)
        self._outbox.send_nowait(line)
        return pending

    async def finish(self, pending: Pending, call: Call[T]) -> T:
        """Wait for the answer to what `begin` sent.

        Raises:
            BashdError: The daemon's error, as the class it raised.
            Exception: Whatever the sink raised.
        """
        return call.read(await self._outcome(pending))

    def cancel(self, request_id: int, *, force: bool = False) -> None:
        """Ask the daemon to abort a run; its answer comes as for any other."""
        if self._lost is not None:
            return
        self._last_id += 1
        params = {"request_id": request_id, "force": force}
        self._outbox.send_nowait(encode_request(self._last_id, "exec.cancel", params))

    def _expect(self, request_id: int, sink: OutputSink | None) -> Pending:
        pending = self._pending[request_id] = Pending(request_id, sink)
        return pending

    async def _outcome(self, pending: Pending) -> Any:  # noqa: ANN401 - a JSON value
        try:
            await pending.arrived.wait()
        finally:
            self._pending.pop(pending.request_id, None)
        if pending.error is not None:
            raise pending.error
        return pending.result

    async def _write(self) -> None:
        try:
            async for line in self._lines:
                await self._stream.send(line)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            # The reader sees the end as well, and after the daemon's last words.
            return

    async def _read(self) -> BashdError:
        framer = Framer()
        while True:
            try:
                framer.receive_data(await self._stream.receive(_CHUNK_BYTES))
                while (message := framer.next_frame()) is not None:
                    self._dispatch(message)
            except FrameError as error:
                return ConnectError(nonsense(error, self._far))
            except BashdError as error:
                return error
            except (
                anyio.EndOfStream,
                anyio.BrokenResourceError,
                anyio.ClosedResourceError,
            ):
                return await self._why_lost()

    async def _why_lost(self) -> ConnectError:
        if self._far is not None:
            # In a thread: ssh may take a moment to leave.
            return await anyio.to_thread.run_sync(self._far.lost)
        return ConnectError("the daemon closed the connection; see its log")

    def _dispatch(self, message: dict[str, Any]) -> None:
        """Hand one message on.

        Raises:
            BashdError: The daemon's word about the connection as a whole.
        """
        if "method" in message:
            self._dispatch_notification(message["method"], message.get("params") or {})
            return
        pending = self._pending.pop(message.get("id", -1), None)
        try:
            result = result_of(message)
        except BashdError as error:
            if message.get("id") is None:
                raise
            if pending is not None:
                pending.settle(None, error)
            return
        if pending is not None:
            pending.settle(result, None)

    def _dispatch_notification(self, method: str, params: dict[str, Any]) -> None:
        if method != "exec.output":
            self._on_notification(method, params)
            return
        pending = self._pending.get(params.get("request_id", -1))
        if pending is None or pending.sink is None:
            return
        try:
            pending.sink(*decode_output(params))
        except Exception as error:  # noqa: BLE001 - it belongs to the caller of run
            pending.settle(None, error)
            self.cancel(pending.request_id)

    def _fail_all(self, error: BashdError) -> None:
        if self._lost is None:
            self._lost = error
            self.lost.set()
        for pending in list(self._pending.values()):
            pending.settle(None, self._lost)
