"""Types of values in bashd's TOML files: how each is checked and described. Pure.

A `Kind` turns what TOML holds into what the program uses, or says in words what it
must be. Both the configuration and the policies are tables of kinds, so a key is
checked, documented and put into the JSON Schema in one place.
"""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")

UNLIMITED: Final = "unlimited"
"""How a file says that a limit does not apply; TOML has no null."""

MAX_WHOLE: Final = 2**63 - 1
"""Largest whole number of TOML, and of the kernel's signed counters."""

_SHOWN: Final = 60
"""Characters of a refused value that a message repeats."""


class BadValueError(Exception):
    """A value is not of its kind.

    Args:
        text: Continues the key's name: ``must be …``.
        at: Where inside the value: ``[2]`` or ``.NAME``.
    """

    def __init__(self, text: str, at: str = "") -> None:
        super().__init__(text)
        self.text = text
        self.at = at


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """One type of value."""

    check: Callable[[object], T]
    """Returns the value as the program uses it, or raises `BadValueError`."""
    schema: Mapping[str, object]
    """The same rule as JSON Schema, as far as that can say it."""


def shown(value: object) -> str:
    """Return a value as a message repeats it: short, on one line."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except ValueError:
        # A whole number of more digits than Python writes out.
        text = "a number too long to show"
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def has_control(value: str) -> bool:
    """Whether *value* holds a C0 or C1 control character, a newline included."""
    return any(char < " " or "\x7f" <= char <= "\x9f" for char in value)


def did_you_mean(word: str, words: Mapping[str, object] | tuple[str, ...]) -> str:
    """Return ``; did you mean "…"?`` for a near miss, else nothing."""
    close = difflib.get_close_matches(word, list(words), n=1)
    return f'; did you mean "{close[0]}"?' if close else ""


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise BadValueError(f"must be true or false, not {shown(value)}")
    return value


FLAG: Final = Kind(_flag, {"type": "boolean"})


def word(*words: str) -> Kind[str]:
    """One of a closed list of words."""
    choices = ", ".join(f'"{choice}"' for choice in words)

    def check(value: object) -> str:
        if not isinstance(value, str) or value not in words:
            hint = did_you_mean(value, words) if isinstance(value, str) else ""
            raise BadValueError(f"must be one of {choices}, not {shown(value)}{hint}")
        return value

    return Kind(check, {"enum": list(words)})


def text(what: str = "a non-empty string", pattern: str | None = None) -> Kind[str]:
    """One line of text, without control characters.

    Args:
        what: How a message calls it.
        pattern: Regular expression it matches as a whole.
    """

    def check(value: object) -> str:
        if (
            not isinstance(value, str)
            or not value.strip()
            or has_control(value)
            or (pattern is not None and not re.fullmatch(pattern, value))
        ):
            raise BadValueError(f"must be {what}, not {shown(value)}")
        return value

    schema: dict[str, object] = {"type": "string", "minLength": 1}
    if pattern is not None:
        schema["pattern"] = f"^(?:{pattern})$"
    return Kind(check, schema)


TEXT: Final = text()


def number(maximum: float | None = None) -> Kind[int | float]:
    """A positive finite number, fractions allowed: times with a unit in their key."""
    most = f" of at most {maximum}" if maximum is not None else ""

    def check(value: object) -> int | float:
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, float))
            # NaN and the infinities compare as out of bounds.
            or not 0 < value <= (MAX_WHOLE if maximum is None else maximum)
        ):
            raise BadValueError(
                f"must be a positive finite number{most}, not {shown(value)}"
            )
        return value

    schema: dict[str, object] = {"type": "number", "exclusiveMinimum": 0}
    if maximum is not None:
        schema["maximum"] = maximum
    return Kind(check, schema)


def whole(minimum: int = 1, maximum: int = MAX_WHOLE) -> Kind[int]:
    """A whole number within bounds; ``64e3`` counts as whole."""
    what = (
        "a positive finite number without a fraction"
        if minimum == 1
        else f"a whole number of at least {minimum}"
    )
    if maximum < MAX_WHOLE:
        what += f" and at most {maximum}"

    def check(value: object) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if (
            isinstance(value, bool)
            or not isinstance(value, int)
            or not minimum <= value <= maximum
        ):
            raise BadValueError(f"must be {what}, not {shown(value)}")
        return value

    schema: dict[str, object] = {"type": "integer", "minimum": minimum}
    if maximum < MAX_WHOLE:
        schema["maximum"] = maximum
    return Kind(check, schema)


def limit(minimum: int = 1, maximum: int = MAX_WHOLE) -> Kind[int | None]:
    """A whole number, or ``"unlimited"``, which is None."""
    counted = whole(minimum, maximum)

    def check(value: object) -> int | None:
        if value == UNLIMITED:
            return None
        try:
            return counted.check(value)
        except BadValueError as error:
            bound = error.text.removeprefix("must be ").rsplit(", not ", 1)[0]
            raise BadValueError(
                f'must be {bound}, or "{UNLIMITED}", not {shown(value)}'
            ) from None

    return Kind(check, {"anyOf": [counted.schema, {"const": UNLIMITED}]})


def list_of(kind: Kind[str]) -> Kind[tuple[str, ...]]:
    """A list; doubles are dropped, the order stays."""

    def check(value: object) -> tuple[str, ...]:
        if not isinstance(value, list):
            raise BadValueError(f"must be a list, not {shown(value)}")
        items: dict[str, None] = {}
        for index, item in enumerate(cast("list[object]", value)):
            try:
                items[kind.check(item)] = None
            except BadValueError as error:
                raise BadValueError(error.text, f"[{index}]{error.at}") from None
        return tuple(items)

    return Kind(check, {"type": "array", "items": kind.schema})


def absolute_path(what: str = "an absolute path") -> Kind[str]:
    """An absolute path without ``..``; a trailing slash and doubled ones go."""

    def check(value: object) -> str:
        if not isinstance(value, str) or not value.startswith("/"):
            raise BadValueError(f"must be {what}, not {shown(value)}")
        return clean_path(value)

    return Kind(check, {"type": "string", "pattern": "^/"})


def clean_path(path: str) -> str:
    """Return *path* with single slashes and none at the end.

    Raises:
        BadValueError: It holds ``..``, ``.`` as a component, or a control character.
    """
    parts = [part for part in path.split("/") if part]
    if ".." in parts or "." in parts:
        raise BadValueError(
            f'must be spelled without "." and ".." components, not {shown(path)}'
        )
    if has_control(path):
        raise BadValueError(f"must hold no control characters, not {shown(path)}")
    return ("/" if path.startswith("/") else "") + "/".join(parts)
