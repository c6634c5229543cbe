"""Results, errors and notifications to lines."""

from __future__ import annotations

import msgspec

from bashd.core.errors import BashdError, LimitError
from bashd.protocol.wire import MAX_FRAME_BYTES, error_object

_ENVELOPE_BYTES = 512
"""More than the longest id and the words around a result."""

_encode = msgspec.json.Encoder().encode


def answer_line(request_id: int | str, result: object) -> bytes:
    """Encode an answer, its newline included.

    Raises:
        LimitError: It is longer than what clients accept.
    """
    body = _encode(result)
    if len(body) > MAX_FRAME_BYTES - _ENVELOPE_BYTES:
        raise LimitError(
            f"the answer has {len(body)} bytes, the most is {MAX_FRAME_BYTES};"
            " ask for less at once"
        )
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}\n' % (_encode(request_id), body)


def error_line(request_id: int | str | None, error: BashdError) -> bytes:
    """Encode an error answer, its newline included; the id is null if unknown."""
    # A message may quote what a client sent or a file is named, in any encoding.
    told = error.message.encode(errors="replace").decode()
    body = _encode(error_object(type(error)(told)))
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}\n' % (_encode(request_id), body)


def notification_line(method: str, params: object) -> bytes:
    """Encode a notification, its newline included."""
    return b'{"jsonrpc":"2.0","method":%b,"params":%b}\n' % (
        _encode(method),
        _encode(params),
    )
