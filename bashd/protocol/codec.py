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

if typing.TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_Reader = Any  # Callable[[object, str], Any]; recursive, and private to this file


def to_wire(value: Any) -> Any:  # noqa: ANN401 - JSON values and dataclasses of them
    """Return *value* as plain JSON values.

    Fields that hold their default are left out: absent means the default.
    """
    if isinstance(value, enum.Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: to_wire(getattr(value, field.name))
            for field in dataclasses.fields(value)
            if not _is_default(field, getattr(value, field.name))
        }
    if is_object(value):
        return {key: to_wire(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [to_wire(item) for item in typing.cast("tuple[Any, ...]", value)]
    if is_array(value):
        return [to_wire(item) for item in value]
    return value


def _is_default(field: dataclasses.Field[Any], value: object) -> bool:
    if field.default_factory is not dataclasses.MISSING:
        return value == field.default_factory()
    # `is` for the type: False == 0 and True == 1.
    return type(value) is type(field.default) and value == field.default


def from_wire(cls: type[T], value: object) -> T:
    """Build the dataclass *cls* from a decoded JSON object.

    Raises:
        InternalError: A required key is missing or a value has another type; names the
            place as ``cls.key[index]``.
    """
    return _reader(cls)(value, cls.__name__)


@functools.cache
def _reader(hint: Any) -> Callable[[object, str], Any]:  # noqa: ANN401 - a type form
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


def _misfit(path: str, expected: str, value: object) -> InternalError:
    return InternalError(
        f"the daemon's answer does not fit this client: {path} should be {expected}, "
        f"got {value!r:.60}; are client and daemon of the same version?"
    )


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

    def read(value: object, path: str) -> Any:  # noqa: ANN401 - an instance of cls
        if not is_object(value):
            raise _misfit(path, "an object", value)
        found: dict[str, object] = {}
        for name, reader, required in plan():
            if name in value:
                found[name] = reader(value[name], f"{path}.{name}")
            elif required:
                raise _misfit(f"{path}.{name}", "present", None)
        return cls(**found)

    return read


def _union_reader(arguments: tuple[Any, ...]) -> _Reader:
    members = [item for item in arguments if item is not types.NoneType]
    nullable = len(members) < len(arguments)
    inner = _reader(members[0]) if len(members) == 1 else _plain_reader(*members)

    def read(value: object, path: str) -> Any:  # noqa: ANN401 - one of the members
        return None if nullable and value is None else inner(value, path)

    return read


def _tuple_reader(item: Any) -> _Reader:  # noqa: ANN401 - a type form
    inner = _reader(item)

    def read(value: object, path: str) -> tuple[Any, ...]:
        if not is_array(value):
            raise _misfit(path, "an array", value)
        return tuple(inner(entry, f"{path}[{i}]") for i, entry in enumerate(value))

    return read


def _dict_reader(item: Any) -> _Reader:  # noqa: ANN401 - a type form
    inner = _reader(item)

    def read(value: object, path: str) -> dict[str, Any]:
        if not is_object(value):
            raise _misfit(path, "an object", value)
        return {key: inner(entry, f"{path}.{key}") for key, entry in value.items()}

    return read


def _enum_reader(cls: type[enum.Enum]) -> _Reader:
    def read(value: object, path: str) -> enum.Enum:
        try:
            return cls(value)
        except ValueError:
            raise _misfit(path, f"one of {[m.value for m in cls]}", value) from None

    return read


def _plain_reader(*kinds: type[Any]) -> _Reader:
    # JSON has one kind of number: an integral float field may arrive as an int.
    accepted = {*kinds, int} if float in kinds else set(kinds)
    expected = " or ".join(kind.__name__ for kind in kinds)

    def read(value: object, path: str) -> object:
        if type(value) not in accepted:
            raise _misfit(path, expected, value)
        return value

    return read
