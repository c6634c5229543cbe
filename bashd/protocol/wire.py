r"""The wire, for whoever writes a client: envelopes, version, errors.

A connection is a Unix stream socket that carries one JSON object a line (UTF-8, each
line ended by one newline, at most `MAX_FRAME_BYTES` long without it). The objects are
JSON-RPC 2.0::

    > {"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocol":1}}
    > {"jsonrpc":"2.0","id":2,"method":"exec.run","params":{"command":"ls","cwd":"/w"}}
    < {"jsonrpc":"2.0","id":1,"result":{"protocol":1,"version":"0.1.0",...}}
    < {"jsonrpc":"2.0","method":"exec.output","params":{"request_id":2,...}}
    < {"jsonrpc":"2.0","id":2,"result":{"exit_code":0,...}}

- ``initialize`` comes first; later requests may follow in the same write, without
  waiting for its answer. When it is refused, so are they.
- Ids are numbers or strings, chosen by the client, unique among its open requests.
  Answers come in the order in which requests finish, not in which they were sent.
- An object without an ``id`` is a notification and gets no answer. Batches are refused.
- An error is ``{"code": N, "message": TEXT, "data": {"code": WORD}}``: WORD is one of
  `bashd.core.errors` and never changes its meaning, TEXT is for a person.
- Absent and null mean the same. A key that the reader does not know is ignored in an
  answer and refused in a request. Binary data is base64 in keys that end in ``_b64``.
- Closing the connection aborts its foreground commands and nothing else.

``bashd schema`` prints every message as JSON Schema. This module is cheap to import:
the command line loads it on every call.
"""

from __future__ import annotations

import json

from bashd.core.errors import BashdError, InternalError, error_from_wire

TYPE_CHECKING = False  # what `typing` would say, without its three milliseconds
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Final, TypeGuard

PROTOCOL_VERSION: Final = 1
MAX_FRAME_BYTES: Final = 16 * 1024 * 1024
"""Largest line either side accepts: an 8 MiB command, escaped, and its environment."""


def is_object(value: object) -> TypeGuard[dict[str, Any]]:
    """Say whether a decoded JSON value is an object."""
    return isinstance(value, dict)


def is_array(value: object) -> TypeGuard[list[Any]]:
    """Say whether a decoded JSON value is an array."""
    return isinstance(value, list)


def request_line(
    request_id: int | str, method: str, params: Mapping[str, object]
) -> bytes:
    """Encode one request, its newline included.

    Raises:
        UnicodeEncodeError: A string holds a lone surrogate, which JSON cannot carry.
    """
    return _line(
        {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
    )


def notification_line(method: str, params: Mapping[str, object]) -> bytes:
    """Encode one notification, its newline included."""
    return _line({"jsonrpc": "2.0", "method": method, "params": params})


def _line(message: Mapping[str, object]) -> bytes:
    text = json.dumps(message, ensure_ascii=False, separators=(",", ":"))
    return text.encode() + b"\n"


def error_object(error: BashdError) -> dict[str, object]:
    """Return *error* as the ``error`` member of a JSON-RPC answer."""
    return {
        "code": error.rpc_code,
        "message": error.message,
        "data": {"code": error.code},
    }


def error_from_object(value: Any) -> BashdError:  # noqa: ANN401 - a JSON value
    """Rebuild the error of an answer; what cannot be read becomes `InternalError`."""
    try:
        message, code = value["message"], value["data"]["code"]
    except (TypeError, LookupError):
        return InternalError(f"the daemon sent an error that is none: {value!r:.200}")
    return error_from_wire(str(code), str(message))
