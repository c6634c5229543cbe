"""TOML text to checked values, with errors that name file, key and fix. Pure.

Keys are dotted (``limits.pids``); which ones exist, and of what kind each is, comes
as a table from the caller (`bashd.core.config`, `bashd.core.policy_schema`).
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from bashd.core.errors import ConfigError
from bashd.core.kinds import BadValueError, did_you_mean, shown

if TYPE_CHECKING:
    from bashd.core.kinds import Kind

T = TypeVar("T")


def parse_toml(text: str, source: str) -> dict[str, Any]:
    """Return the document as nested dicts.

    Args:
        text: The file's content.
        source: The file's path, for messages.

    Raises:
        ConfigError: It is not TOML; the message has line and column.
    """
    try:
        return tomllib.loads(text)
    except ValueError as error:
        # TOMLDecodeError, or a whole number of more digits than Python reads.
        raise ConfigError(f"{source}: not valid TOML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{source}: not valid TOML: nested too deeply") from None


def read_keys(
    table: Mapping[str, object],
    kinds: Mapping[str, Kind[Any]],
    source: str,
    *,
    prefix: str = "",
) -> dict[str, Any]:
    """Check a table against *kinds* and flatten it to dotted keys.

    Args:
        table: Parsed TOML.
        kinds: Every key that may stand in the file.
        source: The file's path, for messages.
        prefix: Put before each key in messages, with its dot.

    Raises:
        ConfigError: An unknown key, or a value that is not of its kind.
    """
    values: dict[str, Any] = {}
    for key, value in _flat(table, kinds, source, prefix):
        values[key] = check_value(value, kinds[key], source, prefix + key)
    return values


def _flat(
    table: Mapping[str, object],
    kinds: Mapping[str, Kind[Any]],
    source: str,
    prefix: str,
) -> Iterator[tuple[str, object]]:
    """Yield the known keys of nested tables, dotted."""
    waiting = [("", table)]
    while waiting:
        above, inner = waiting.pop(0)
        for name, value in inner.items():
            key = above + name
            if key in kinds:
                yield key, value
            elif not any(known.startswith(key + ".") for known in kinds):
                raise unknown_key(key, kinds, source, prefix=prefix)
            elif isinstance(value, Mapping):
                waiting.append((key + ".", cast("Mapping[str, object]", value)))
            else:
                raise ConfigError(
                    f"{source}: {prefix}{key} must be a table, not {shown(value)};"
                    f" write [{prefix}{key}] and its keys below"
                )


def check_value(value: object, kind: Kind[T], source: str, key: str) -> T:
    """Return one checked value.

    Raises:
        ConfigError: It is not of its kind.
    """
    try:
        return kind.check(value)
    except BadValueError as error:
        raise ConfigError(f"{source}: {key}{error.at} {error.text}") from None


def unknown_key(
    key: str, kinds: Mapping[str, object], source: str, *, prefix: str = ""
) -> ConfigError:
    """Return the error for a key that does not exist, with what was likely meant."""
    above, _, name = key.rpartition(".")
    start = above + "." if above else ""
    siblings = dict.fromkeys(
        known.removeprefix(start).split(".")[0]
        for known in kinds
        if known.startswith(start)
    )
    hint = did_you_mean(name, siblings)
    if not hint:
        # Perhaps it is right, in the wrong table.
        places = [known for known in kinds if known.rpartition(".")[2] == name]
        if places:
            hint = f'; it belongs to another table: "{prefix}{places[0]}"'
        else:
            hint = "; known here: " + ", ".join(sorted(siblings))
    return ConfigError(f'{source}: unknown key "{prefix}{key}"{hint}')
