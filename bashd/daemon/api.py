"""One connection: bytes to requests, and the end of it.

Theory of operation. One trio task reads. It takes a chunk, asks the kernel who sent it,
cuts it into lines and sees to one task for each request; answers leave in the order in
which handlers finish. The last request of a chunk is served by the task that has read
it, in the same turn of the loop, while another one reads on: a client that sends one
request at a time waits for no turn. The reader waits for nothing but the socket, with
one exception: a client that leaves megabytes of answers unread gets no more requests
read. So a slow handler, a slow client or a hostile one delays nobody else, and a cancel
is always heard.

The end: the client closes its side (half of it is enough), breaks the framing, is
refused, or holds too much. Then every open call is told to abort and is waited for, and
what is still unread gets a moment. When the daemon stops, the service has settled its
work before this task is cancelled.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import trio

from bashd.core.abort import AbortSignal
from bashd.core.errors import BashdError, CallerError, FrameError, LimitError
from bashd.daemon.answers import answer_line, error_line, notification_line
from bashd.daemon.call import Call, Dispatch
from bashd.daemon.calls import Calls, IdInUseError
from bashd.daemon.credentials import receive
from bashd.daemon.outbox import Outbox
from bashd.daemon.request import BadRequestError, Request, parse_request
from bashd.protocol.framing import Framer
from bashd.protocol.messages import InitializeParams
from bashd.protocol.wire import PROTOCOL_VERSION

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable

    from bashd.daemon.peer import Caller, Senders
    from bashd.daemon.quota import Bounds, Holding

logger = logging.getLogger(__name__)

_CHUNK_BYTES: Final = 64 * 1024
_LINES_PER_TURN: Final = 32
"""Requests started before other connections get their turn; about a millisecond."""
_GREETING_BYTES: Final = 64 * 1024
"""Greatest length of a first message."""
_BAD_LINES: Final = 64
"""Lines that are no requests, after which a connection is taken for a mistake."""


class Connection:
    """Serves one client until it leaves; it is its handlers' `Client`.

    Args:
        sock: Accepted, non-blocking, stamping credentials; not taken over.
        number: Names the connection in logs and to the service.
        senders: Who speaks on it; not taken over.
        dispatch: The service.
        holding: Where what it holds is counted.
        bounds: How much it may take.
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        number: int,
        senders: Senders,
        dispatch: Dispatch,
        holding: Holding,
        bounds: Bounds,
    ) -> None:
        self.number = number
        self.closed = AbortSignal()
        self._sock = sock
        self._senders = senders
        self._dispatch = dispatch
        self._holding = holding
        self._bounds = bounds
        self._framer = Framer()
        self._partial_bytes = 0
        self._last_sender = b""
        self._bad_lines = 0
        self._greeted = False
        self._handshake = trio.CancelScope()
        self._resting = trio.lowlevel.ParkingLot()
        """A task that has served and will read when the one that reads now serves."""
        self._is_over = False
        """Nobody will read any more."""

    async def finish(self, reason: str) -> None:
        """Withdraw what is open, and wait until the client has every answer."""
        self._calls.abort_all(reason)
        await self._calls.wait_answered()
        await self._outbox.wait_below(1)

    async def serve(self) -> None:
        """Serve the client; returns when nothing of it is left."""
        async with trio.open_nursery() as sending:
            self._outbox = Outbox(self._sock, self._holding, sending.start_soon)
            try:
                async with trio.open_nursery() as serving:
                    self._calls = Calls(
                        self,
                        dispatch=self._dispatch,
                        outbox=self._outbox,
                        holding=self._holding,
                        bounds=self._bounds,
                        nursery=serving,
                    )
                    await self._read_first(serving)
                with trio.move_on_after(self._bounds.flush_s):
                    await self._outbox.wait_below(1)
            finally:
                self._hang_up()
                self._outbox.discard()
                self._holding.hold(-self._partial_bytes)
                sending.cancel_scope.cancel()

    async def notify(self, method: str, params: object) -> bool:
        """See `bashd.daemon.call.Client.notify`."""
        await self._outbox.wait_below(self._bounds.notify_bytes)
        if self._outbox.broken:
            return False
        self._outbox.put(notification_line(method, params))
        return True

    def notify_nowait(self, method: str, params: object) -> bool:
        """See `bashd.daemon.call.Client.notify_nowait`."""
        outbox = self._outbox
        if outbox.broken or outbox.pending_bytes >= self._bounds.notify_bytes:
            return False
        outbox.put(notification_line(method, params))
        return True

    def _hang_up(self) -> None:
        """Tell everything that runs for this client that it has left."""
        self.closed.abort("client disconnected")
        self._calls.abort_all("client disconnected")

    async def _read_first(self, nursery: trio.Nursery) -> None:
        """Read from the handshake on."""
        with self._handshake as handshake:
            handshake.deadline = trio.current_time() + self._bounds.handshake_s
            await self._read_on(nursery)
        if handshake.cancelled_caught:
            self._say_farewell(
                LimitError(f"no initialize in {self._bounds.handshake_s:g} seconds")
            )
            self._hang_up()

    async def _read_on(self, nursery: trio.Nursery) -> None:
        """Read, and serve what was read while another task reads on, in turns.

        Args:
            nursery: Where the others are.
        """
        while True:
            first = None
            try:
                first = await self._read()
            except BashdError as error:
                self._say_farewell(error)
            finally:
                self._calls.start_first()
            if first is None:
                self._hang_up()
                self._is_over = True
                self._resting.unpark_all()
                return
            if self._resting:
                self._resting.unpark()
            else:
                nursery.start_soon(self._read_on, nursery)
            await first()
            if self._resting or self._is_over:
                return
            # Cheaper than a new task for the next request.
            await self._resting.park()
            if self._is_over:
                return

    def _say_farewell(self, error: BashdError) -> None:
        logger.info(
            "connection %d of uid %d ends: %s",
            self.number,
            self._holding.uid,
            error.message,
        )
        self._outbox.put(error_line(None, error))

    async def _read(self) -> Callable[[], Awaitable[None]] | None:
        """Act on what arrives until there is a request to serve.

        Returns:
            What serves it; None when the client is gone.

        Raises:
            BashdError: The connection must end, for this reason.
        """
        while True:
            if self._outbox.pending_bytes >= self._bounds.unread_bytes:
                await self._outbox.wait_below(self._bounds.unread_bytes)
            await trio.lowlevel.wait_readable(self._sock)
            try:
                data, credentials, pidfd = receive(self._sock, _CHUNK_BYTES)
            except BlockingIOError:
                continue
            except OSError:
                return None
            if not data or self._outbox.broken:
                return None
            await self._take(data, self._sender(credentials, pidfd))
            first = self._calls.take_first()
            if first is not None:
                return first

    def _sender(self, credentials: bytes, pidfd: int) -> Caller:
        caller = self._senders.caller(credentials, pidfd)
        if credentials != self._last_sender:
            if self._partial_bytes:
                # Whose request would that be?
                raise FrameError("two processes wrote one message")
            self._last_sender = credentials
        return caller

    async def _take(self, data: bytes, caller: Caller) -> None:
        framer = self._framer
        framer.receive_data(data)
        turn = 0
        while (line := framer.next_line()) is not None:
            self._take_line(line, caller)
            turn += 1
            if turn % _LINES_PER_TURN == 0:
                await trio.lowlevel.checkpoint()
        if framer.partial_bytes != self._partial_bytes:
            self._holding.hold(framer.partial_bytes - self._partial_bytes)
            self._partial_bytes = framer.partial_bytes
            if not self._greeted and self._partial_bytes > _GREETING_BYTES:
                raise FrameError("the first message must be a short initialize")
        self._holding.check()

    def _take_line(self, line: bytes, caller: Caller) -> None:
        try:
            request = parse_request(line)
        except BadRequestError as bad:
            self._bad_lines += 1
            if self._bad_lines > _BAD_LINES:
                raise FrameError("too many lines that are no requests") from None
            if not bad.is_notification:
                self._outbox.put(error_line(bad.request_id, bad.error))
            return
        try:
            self._obey(request, caller, len(line))
        except IdInUseError as error:
            # An answer under that id would settle the request that is still open.
            self._outbox.put(error_line(None, error))
        except BashdError as error:
            if request.request_id is not None:
                self._outbox.put(error_line(request.request_id, error))

    def _obey(self, request: Request, caller: Caller, size: int) -> None:
        if request.method == "initialize":
            self._initialize(request, caller)
        elif self._greeted:
            self._calls.submit(request, caller, size)
        else:
            raise CallerError(f"{request.method} came before initialize")

    def _initialize(self, request: Request, caller: Caller) -> None:
        params, request_id = request.params, request.request_id
        if request_id is None or not isinstance(params, InitializeParams):
            raise CallerError("initialize needs an id")
        if self._greeted:
            raise CallerError("initialize came before on this connection")
        if params.protocol != PROTOCOL_VERSION:
            raise CallerError(
                f"this daemon speaks protocol {PROTOCOL_VERSION} and the client"
                f" {params.protocol}; install the same bashd on both sides"
            )
        call = Call(
            caller=caller, client=self, method="initialize", request_id=request_id
        )
        result = self._dispatch.initialize_result(call)
        self._outbox.put(answer_line(request_id, result))
        self._greeted = True
        self._handshake.deadline = float("inf")
