"""JSON values to the dataclasses of the wire and back, with the standard library alone.

The daemon validates what strangers send with msgspec; the client reads answers of a
daemon it has chosen and must start fast, so it converts with this. Keys it does not
know are skipped (a newer daemon may say more), a missing key takes the field's default,
and anything else that does not fit is a mismatch of versions, which the error says.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import typing
from typing import Any, TypeVar

from bashd.core.errors import InternalError
from bashd.protocol.wire import is_array, is_object

T = TypeVar("T")

_Reader = Any  # Callable[[object], Any]; recursive, and private to this file


def to_wire(value: Any) -> Any:  # noqa: ANN401 - JSON values and dataclasses of them
    """Return *value* as plain JSON values.

    Fields that hold their default are left out: absent means the default.
    """
    if type(value) in _PLAIN:
        return value
    if isinstance(value, enum.Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _fields_to_wire(value)
    if is_object(value):
        return {key: to_wire(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_wire(item) for item in typing.cast("tuple[Any, ...]", value)]
    return value


def _fields_to_wire(value: object) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, default in _defaults(type(value)):
        item = getattr(value, name)
        # `is` for the type: False == 0 and True == 1.
        if type(item) is not type(default) or item != default:
            found[name] = to_wire(item)
    return found


_PLAIN = frozenset((str, int, float, bool, types.NoneType))


@functools.cache
def _defaults(cls: type[Any]) -> list[tuple[str, object]]:
    """Return the fields with what they hold by default; `MISSING` equals nothing."""
    return [
        (
            field.name,
            field.default
            if field.default_factory is dataclasses.MISSING
            else field.default_factory(),
        )
        for field in dataclasses.fields(cls)
    ]


def from_wire(cls: type[T], value: object) -> T:
    """Build the dataclass *cls* from a decoded JSON object.

    Raises:
        InternalError: A required key is missing or a value has another type; names the
            place as ``cls.key[index]``.
    """
    try:
        return _reader(cls)(value)
    except _MisfitError as error:
        raise error.told(cls.__name__) from None


class _MisfitError(Exception):
    """A value of another type; on its way out it learns where that was."""

    def __init__(self, expected: str, value: object) -> None:
        super().__init__()
        self.at: list[str] = []
        """Innermost first."""
        self._expected = expected
        self._value = value

    def told(self, root: str) -> InternalError:
        """Return what to raise for it."""
        path = root + "".join(reversed(self.at))
        return InternalError(
            f"the daemon's answer does not fit this client: {path} should be "
            f"{self._expected}, got {self._value!r:.60}; are client and daemon of the "
            "same version?"
        )


def _miss() -> typing.NoReturn:
    raise _MisfitError("present", None)


@functools.cache
def _reader(hint: Any) -> _Reader:  # noqa: ANN401 - a type form
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        return _dataclass_reader(typing.cast("type[Any]", hint))
    if origin in {types.UnionType, typing.Union}:
        return _union_reader(arguments)
    if origin is tuple:
        return _tuple_reader(arguments[0])
    if origin is dict:
        return _dict_reader(arguments[1])
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _enum_reader(hint)
    return _plain_reader(typing.cast("type[Any]", hint))


def _dataclass_reader(cls: type[Any]) -> _Reader:
    # Deferred, because a type may contain itself and hints need the module complete.
    @functools.cache
    def plan() -> list[tuple[str, _Reader, bool]]:
        hints = typing.get_type_hints(cls)
        return [
            (
                field.name,
                _reader(hints[field.name]),
                field.default is dataclasses.MISSING
                and field.default_factory is dataclasses.MISSING,
            )
            for field in dataclasses.fields(cls)
        ]

    def read(value: object) -> Any:  # noqa: ANN401 - an instance of cls
        if not is_object(value):
            raise _MisfitError("an object", value)
        found: dict[str, object] = {}
        name = ""
        try:
            for name, reader, required in plan():
                if name in value:
                    found[name] = reader(value[name])
                elif required:
                    _miss()
        except _MisfitError as error:
            error.at.append(f".{name}")
            raise
        return cls(**found)

    return read


def _union_reader(arguments: tuple[Any, ...]) -> _Reader:
    members = [item for item in arguments if item is not types.NoneType]
    nullable = len(members) < len(arguments)
    inner = _reader(members[0]) if len(members) == 1 else _plain_reader(*members)

    def read(value: object) -> Any:  # noqa: ANN401 - one of the members
        return None if nullable and value is None else inner(value)

    return read


def _tuple_reader(item: Any) -> _Reader:  # noqa: ANN401 - a type form
    inner = _reader(item)

    def read(value: object) -> tuple[Any, ...]:
        if not is_array(value):
            raise _MisfitError("an array", value)
        found: list[Any] = []
        try:
            for entry in value:
                found.append(inner(entry))  # noqa: PERF401 - its length is the index
        except _MisfitError as error:
            error.at.append(f"[{len(found)}]")
            raise
        return tuple(found)

    return read


def _dict_reader(item: Any) -> _Reader:  # noqa: ANN401 - a type form
    inner = _reader(item)

    def read(value: object) -> dict[str, Any]:
        if not is_object(value):
            raise _MisfitError("an object", value)
        found: dict[str, Any] = {}
        key = ""
        try:
            for key, entry in value.items():
                found[key] = inner(entry)
        except _MisfitError as error:
            error.at.append(f".{key}")
            raise
        return found

    return read


def _enum_reader(cls: type[enum.Enum]) -> _Reader:
    def read(value: object) -> enum.Enum:
        try:
            return cls(value)
        except ValueError:
            expected = f"one of {[m.value for m in cls]}"
            raise _MisfitError(expected, value) from None

    return read


def _plain_reader(*kinds: type[Any]) -> _Reader:
    # JSON has one kind of number: an integral float field may arrive as an int.
    accepted = {*kinds, int} if float in kinds else set(kinds)
    expected = " or ".join(kind.__name__ for kind in kinds)

    def read(value: object) -> object:
        if type(value) not in accepted:
            raise _MisfitError(expected, value)
        return value

    return read
