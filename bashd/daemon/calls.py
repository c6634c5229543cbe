"""The open requests of one connection: started, fed, cancelled, answered.

A handler is not cancelled when its client withdraws, because it has to end what it
started; it is told, and this module waits for it. Only methods that do nothing but wait
are cancelled outright.
"""

from __future__ import annotations

import binascii
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import trio

from bashd.core.errors import (
    AbortedError,
    BashdError,
    CallerError,
    InternalError,
    InvalidParamsError,
    LimitError,
    Refused,
)
from bashd.daemon.access import narrow
from bashd.daemon.answers import answer_line, error_line
from bashd.daemon.call import Call, Client, Dispatch, Handler
from bashd.daemon.stdin import StdinFeed
from bashd.daemon.terminal import Terminal
from bashd.protocol.messages import (
    Empty,
    ExecCancelParams,
    ExecParams,
    ExecResizeParams,
    ExecStdinParams,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from bashd.daemon.outbox import Outbox
    from bashd.daemon.peer import Caller
    from bashd.daemon.quota import Bounds, Holding
    from bashd.daemon.request import Request

logger = logging.getLogger(__name__)

PURE_WAITS: Final = frozenset({"task.wait", "task.logs"})
"""Methods that only wait for something; cancelled when their client withdraws."""


class IdInUseError(CallerError):
    """A request came under the id of one that is still open."""


class Calls:
    """Runs handlers for one connection.

    Args:
        client: The connection, as handlers see it.
        dispatch: The service.
        outbox: Where answers go.
        holding: Where what requests hold is counted.
        bounds: How many may be open.
        nursery: Where handlers run.
    """

    def __init__(
        self,
        client: Client,
        *,
        dispatch: Dispatch,
        outbox: Outbox,
        holding: Holding,
        bounds: Bounds,
        nursery: trio.Nursery,
    ) -> None:
        self._client = client
        self._dispatch = dispatch
        self._outbox = outbox
        self._holding = holding
        self._bounds = bounds
        self._nursery = nursery
        self._open: dict[int | str, Call] = {}
        self._feeds: dict[int | str, StdinFeed] = {}
        self._answered = trio.lowlevel.ParkingLot()
        self._refused_pids: set[int] = set()
        self._first: Callable[[], Awaitable[None]] | None = None
        """The handler that `take_first` may run; nothing of it has run yet."""

    def submit(self, request: Request, caller: Caller, size: int) -> None:
        """Make the handler of a request ready, or do what it says to another one.

        Args:
            request: Anything but ``initialize``.
            caller: Who sent it.
            size: Bytes it has on the wire.

        Raises:
            BashdError: It is refused; the answer is not sent yet.
        """
        params = request.params
        if caller.confined is not None:
            params = self._narrow(request.method, params, caller)
        match params:
            case ExecCancelParams():
                self._cancel(params, caller, request.request_id)
            case ExecStdinParams():
                self._feed(params, caller, request.request_id)
            case ExecResizeParams():
                self._resize(params, caller, request.request_id)
            case _ if request.request_id is None:
                # JSON-RPC forbids an answer, so nobody would learn the outcome.
                logger.debug("%s came without an id and was dropped", request.method)
            case _:
                call = Call(
                    caller=caller,
                    client=self._client,
                    method=request.method,
                    request_id=request.request_id,
                )
                self._begin(call, params, size)

    def take_first(self) -> Callable[[], Awaitable[None]] | None:
        """Return the handler of the last request, for the caller to run at once.

        None where there is none. One that nobody takes starts with the next request,
        or with `start_first`.
        """
        first, self._first = self._first, None
        return first

    def start_first(self) -> None:
        """Start what `take_first` would return, in a task of its own."""
        first = self.take_first()
        if first is not None:
            self._nursery.start_soon(first)

    async def wait_answered(self) -> None:
        """Wait until no request is open."""
        while self._open:
            await self._answered.park()

    def abort_all(self, reason: str) -> None:
        """Tell every open call that its client has withdrawn it."""
        for call in list(self._open.values()):
            call.abort.abort(reason)

    def _narrow(self, method: str, params: object, caller: Caller) -> object:
        if caller.confined is None:
            return params
        try:
            return narrow(
                method,
                params,
                caller.confined,
                lambda task_id: self._dispatch.reach_of_task(caller, task_id),
            )
        except BashdError as error:
            # Once for each process: it may try as often as it likes, the log is ours.
            told = caller.pid in self._refused_pids
            if not told and isinstance(error, Refused):
                self._dispatch.refused(caller, method, error)
            self._refused_pids.add(caller.pid)
            logger.log(
                logging.DEBUG if told else logging.WARNING,
                "refused to pid %d of uid %d: %s",
                *(caller.pid, caller.uid, error.message),
            )
            raise

    def _begin(self, call: Call, params: object, size: int) -> None:
        request_id = call.request_id
        if request_id in self._open:
            raise IdInUseError(
                f"request id {request_id!r} is still open; use each id once"
            )
        if len(self._open) >= self._bounds.requests_in_flight:
            raise LimitError(
                f"{len(self._open)} requests of this connection are open, the most it"
                " may have; wait for answers"
            )
        self._holding.check_room(size)
        handler = self._dispatch.handlers.get(call.method)
        if handler is None:
            raise InternalError(f"this daemon has no handler for {call.method}")
        if isinstance(params, ExecParams) and params.stdin_stream:
            if call.method != "exec.run":
                # Answered at once, so there would be nothing to send stdin to.
                raise InvalidParamsError(
                    "only exec.run streams stdin; give stdin_b64"
                    " - at `$.params.stdin_stream`"
                )
            feed = self._feeds[request_id] = StdinFeed(self._holding)
            call.stdin = feed
        if isinstance(params, ExecParams) and params.terminal is not None:
            call.terminal = _terminal(call, params)
        self._holding.hold(size)
        self._open[request_id] = call
        self.start_first()
        self._first = partial(self._serve, call, handler, params, size)

    async def _serve(
        self, call: Call, handler: Handler, params: object, size: int
    ) -> None:
        try:
            if call.method in PURE_WAITS:
                result = await _until_aborted(call, handler, params)
            else:
                result = await handler(call, params)
            line = answer_line(call.request_id, result)
        except BashdError as error:
            line = error_line(call.request_id, error)
        except Exception as error:  # noqa: BLE001 - the one place that reports them
            line = error_line(call.request_id, _reported(call, error))
        finally:
            self._holding.hold(-size)
            del self._open[call.request_id]
            feed = self._feeds.pop(call.request_id, None)
            if feed is not None:
                feed.close()
        self._outbox.put(line)
        self._answered.unpark_all()

    def _find(self, request_id: int | str, caller: Caller) -> Call | None:
        """Return an open call that *caller* may steer.

        A confined process that was handed the connection of an ordinary one must not
        feed stdin to what that one runs.
        """
        call = self._open.get(request_id)
        if call is None or caller.confined in (None, call.caller.confined):
            return call
        return None

    def _cancel(
        self,
        params: ExecCancelParams,
        caller: Caller,
        request_id: int | str | None,
    ) -> None:
        call = self._find(params.request_id, caller)
        if call is not None:
            if params.force:
                call.kill.abort("killed by the client")
            call.abort.abort("cancelled by the client")
        # That it has ended meanwhile is no error: the two messages crossed.
        self._acknowledge(request_id)

    def _feed(
        self, params: ExecStdinParams, caller: Caller, request_id: int | str | None
    ) -> None:
        call = self._find(params.request_id, caller)
        feed = self._feeds.get(params.request_id)
        if call is None or feed is None:
            # The command has ended, or never asked: there is nobody to read it.
            self._acknowledge(request_id)
            return
        try:
            data = binascii.a2b_base64(params.data_b64, strict_mode=True)
        except ValueError as error:
            call.abort.abort("its stdin was not valid base64")
            raise InvalidParamsError(f"{error} - at `$.params.data_b64`") from None
        taken = None if request_id is None else partial(self._acknowledge, request_id)
        if not feed.push(data, taken):
            feed.close()
            call.abort.abort("its stdin came faster than it was read")
        if params.eof:
            feed.end()

    def _resize(
        self, params: ExecResizeParams, caller: Caller, request_id: int | str | None
    ) -> None:
        call = self._find(params.request_id, caller)
        if call is not None and call.terminal is not None:
            call.terminal.resize(params.rows, params.columns)
        # That its command has ended meanwhile is no error.
        self._acknowledge(request_id)

    def _acknowledge(self, request_id: int | str | None) -> None:
        if request_id is not None:
            self._outbox.put(answer_line(request_id, Empty()))


def _terminal(call: Call, params: ExecParams) -> Terminal:
    if params.terminal is None or call.stdin is None or not params.stream:
        raise InvalidParamsError(
            "a terminal needs exec.run with stdin_stream and stream - at"
            " `$.params.terminal`"
        )
    return Terminal(params.terminal.rows, params.terminal.columns, call.stdin)


async def _until_aborted(call: Call, handler: Handler, params: object) -> Any:  # noqa: ANN401
    with trio.CancelScope() as scope:
        undo = call.abort.subscribe(scope.cancel)
        try:
            return await handler(call, params)
        finally:
            undo()
    raise AbortedError(call.abort.reason)


def _reported(call: Call, error: Exception) -> BashdError:
    """Return what to tell the client about an error that may not be meant for it."""
    told = _sole_cause(error)
    if isinstance(told, BashdError):
        return told
    logger.error("%s of uid %d failed", call.method, call.caller.uid, exc_info=error)
    return InternalError(
        f"{call.method} failed inside the daemon ({type(told).__name__}); its log has"
        " the details"
    )


def _sole_cause(error: Exception) -> Exception:
    """Unwrap what a handler's own nursery wrapped."""
    inner: tuple[Exception, ...] = getattr(error, "exceptions", ())
    return _sole_cause(inner[0]) if len(inner) == 1 else error
