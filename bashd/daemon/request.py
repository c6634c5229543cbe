"""One received line to one validated request: pure, and the only place that parses.

The line is weighed before it is parsed: what parsing costs is not its length (a long
command is one string) but how many values it holds, and no request has many.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from bashd.core.errors import (
    BashdError,
    CallerError,
    FrameError,
    InvalidParamsError,
    UnknownMethodError,
)
from bashd.protocol.framing import check_depth, decode_frame
from bashd.protocol.messages import METHODS
from bashd.protocol.wire import is_object

if TYPE_CHECKING:
    from collections.abc import Callable

_LIGHT_BYTES: Final = 4 * 1024
"""Lines up to this long are cheap whatever they hold."""
MAX_STRINGS: Final = 16 * 1024
"""Strings in one message, keys included; an environment has a few hundred."""
MAX_STRUCTURE_BYTES: Final = 64 * 1024
"""Bytes of one message outside its strings: brackets, commas, numbers, blanks."""
_MAX_ID_CHARS: Final = 128
"""An id is echoed with every piece of live output."""
_MAX_ID: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Request:
    """A request or, without an id, a notification."""

    request_id: int | str | None
    method: str
    params: object
    """Instance of the dataclass in `METHODS`."""


class BadRequestError(Exception):
    """A line that is no valid request, and the id to answer it with.

    Args:
        error: What to tell the client.
        request_id: The request's id, if that much could be read.
        is_notification: It has no id, so no answer is due.
    """

    def __init__(
        self,
        error: BashdError,
        request_id: int | str | None = None,
        *,
        is_notification: bool = False,
    ) -> None:
        super().__init__(error.message)
        self.error = error
        self.request_id = request_id
        self.is_notification = is_notification


@dataclass(frozen=True, slots=True)
class _Shape:
    """How the parameters of one method are read: absent and null mean the same."""

    type: type
    names: frozenset[str]
    null_if_absent: tuple[str, ...]
    """Required, but null is a value."""
    drop_if_null: tuple[str, ...]
    """Null is no value: the default holds, or it is missing."""


def _shape(cls: type) -> _Shape:
    hints = typing.get_type_hints(cls)
    fields = dataclasses.fields(cls)
    nullable = {
        name
        for name, hint in hints.items()
        if isinstance(hint, types.UnionType) and type(None) in typing.get_args(hint)
    }
    required = {
        field.name
        for field in fields
        if field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    }
    names = frozenset(field.name for field in fields)
    return _Shape(
        type=cls,
        names=names,
        null_if_absent=tuple(sorted(required & nullable)),
        drop_if_null=tuple(sorted(names - nullable)),
    )


_decode_json: Callable[[bytes], object] = msgspec.json.Decoder().decode
_convert: Callable[[object, type], object] = msgspec.convert
_SHAPES: Final = {method: _shape(params) for method, (params, _) in METHODS.items()}


def parse_request(line: bytes) -> Request:
    """Parse one line.

    Raises:
        BadRequestError: It is not a request of this protocol version.
    """
    try:
        members = _decode_light(line) if len(line) <= _LIGHT_BYTES else _decode(line)
    except FrameError as error:
        raise BadRequestError(error) from None
    except RecursionError:
        raise BadRequestError(FrameError("a message nests too deep")) from None
    request_id = _request_id(members)
    try:
        method = _method(members)
        return Request(request_id, method, _params(method, members))
    except BashdError as error:
        raise BadRequestError(
            error,
            request_id,
            is_notification=request_id is None and "method" in members,
        ) from None


def _decode_light(line: bytes) -> dict[str, object]:
    """Do what `decode_frame` does, quickly where there is nothing to judge.

    Most requests are two objects, one inside the other, and no text of theirs has a
    colon: then as many colons as keys means that no key came twice.

    Raises:
        FrameError: As there.
    """
    if line.count(b"{") == 2 and b"[" not in line:  # noqa: PLR2004 - see above
        try:
            value: Any = _decode_json(line)
            params: object = value["params"]
            if is_object(params) and line.count(b":") == len(value) + len(params):
                return value
        except (ValueError, TypeError, LookupError):
            pass  # for `decode_frame` to say why
    return decode_frame(line)


def _decode(line: bytes) -> dict[str, object]:
    """Do what `decode_frame` does, at a tenth of its cost where strings are long.

    Raises:
        FrameError: As there, or the line holds too many values.
    """
    structure = _structure(line)
    check_depth(structure)
    try:
        value: object = _decode_json(line)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"a message is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise FrameError("a message is not a JSON object; send one object a line")
    # One colon a key: fewer keys than that were left after some were overwritten.
    if structure.count(b":") != _count_keys(cast("object", value)):
        raise FrameError("a message has a key twice in one object")
    return cast("dict[str, object]", value)


def _structure(line: bytes) -> bytes:
    """Return what is outside of strings, without parsing the line.

    Everything here runs at the speed of memory: with escapes gone, every quote left
    begins or ends a string, and splitting stops at the limit.

    Raises:
        FrameError: The line holds too many values.
    """
    if b"\\" in line:
        line = line.replace(b"\\\\", b"").replace(b'\\"', b"")
    pieces = line.split(b'"', 2 * MAX_STRINGS)
    if len(pieces) > 2 * MAX_STRINGS:
        raise FrameError(f"a message holds more than {MAX_STRINGS} strings")
    outside = pieces[::2]
    if sum(map(len, outside)) > MAX_STRUCTURE_BYTES:
        raise FrameError(
            f"a message has more than {MAX_STRUCTURE_BYTES} bytes outside its strings"
        )
    return b"".join(outside)


def _count_keys(value: object) -> int:
    match value:
        case dict():
            items = cast("dict[str, object]", value)
            return len(items) + sum(map(_count_keys, items.values()))
        case list():
            return sum(map(_count_keys, cast("list[object]", value)))
        case _:
            return 0


def _request_id(members: dict[str, object]) -> int | str | None:
    match members.get("id"):
        case None:
            return None
        case bool():
            kind = "true or false"
        case int() as number:
            if -_MAX_ID <= number <= _MAX_ID:
                return number
            kind = "a number of more than 64 bits"
        case str() as text:
            if len(text) <= _MAX_ID_CHARS:
                return text
            kind = f"longer than {_MAX_ID_CHARS} characters"
        case float():
            kind = "a fraction"
        case _:
            kind = "an array or an object"
    raise BadRequestError(
        CallerError(
            f"a request's id must be an integer or a short string; it is {kind}"
        )
    )


def _method(members: dict[str, object]) -> str:
    if members.get("jsonrpc") != "2.0":
        raise CallerError('a request must have "jsonrpc": "2.0"')
    method = members.get("method")
    if not isinstance(method, str):
        raise CallerError("a request must have a method, which is a string")
    if method not in _SHAPES:
        raise UnknownMethodError(
            f"there is no method {method[:64]!r}; `bashd schema` lists them"
        )
    return method


def _params(method: str, members: dict[str, object]) -> object:
    given = members.get("params")
    if given is None:
        given = {}
    if not isinstance(given, dict):
        raise InvalidParamsError(
            "Expected an object with named parameters - at `$.params`"
        )
    params = cast("dict[str, object]", given)
    shape = _SHAPES[method]
    if not params.keys() <= shape.names:
        # Ignoring what it does not know could run a command with less than was
        # asked for, so an older daemon says so.
        name = min(params.keys() - shape.names)
        raise InvalidParamsError(f"Unknown parameter - at `$.params.{name[:64]}`")
    _settle_nulls(params, shape)
    try:
        return _convert(params, shape.type)
    except msgspec.ValidationError as error:
        raise InvalidParamsError(_in_params(str(error))) from None


def _settle_nulls(params: dict[str, object], shape: _Shape) -> None:
    for name in shape.null_if_absent:
        params.setdefault(name, None)
    if None in params.values():
        for name in shape.drop_if_null:
            if name in params and params[name] is None:
                del params[name]


def _in_params(message: str) -> str:
    """Have the path in msgspec's message start at the request, not its parameters."""
    text, at, path = message.rpartition(" - at `$")
    return f"{text}{at}.params{path}" if at else f"{message} - at `$.params`"
