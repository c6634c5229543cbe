"""A policy for people and programs: as TOML, and as plain JSON values. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, cast

from bashd.core.kinds import UNLIMITED
from bashd.core.policy import BUILT_IN, Policy, jsonable, values_of
from bashd.core.policy_schema import KEYS, Order, Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from bashd.core.policy_values import CommandRule

_ON_ONE_LINE: Final = 3
"""A list of more entries than this gets a line for each."""


def to_json(policy: Policy) -> dict[str, Any]:
    """Return the effect as nested JSON values, with name and digest.

    A limit that does not apply is null; ``commands`` is a list of rule lists.
    """
    nested: dict[str, Any] = {"name": policy.name, "digest": policy.digest}
    for key, value in values_of(policy).items():
        table = nested
        *above, last = key.split(".")
        for part in above:
            table = table.setdefault(part, {})
        settings = KEYS[key].order is Order.SETTINGS
        table["commands" if last == "command" else last] = (
            dict(value) if settings else jsonable(value)
        )
    return nested


def sources_json(policy: Policy) -> dict[str, list[str]]:
    """Return the files each dotted key comes from."""
    return {key: list(files) for key, files in policy.sources.items()}


def to_toml(
    values: Mapping[str, Value], sources: Mapping[str, Iterable[str]] | None = None
) -> str:
    """Return values by dotted key as the text of a policy file.

    Args:
        values: All of a policy's (see `values_of`) or some.
        sources: Dotted key to its files; said in a comment where given.
    """
    lines: list[str] = []
    table = ""
    for key in KEYS:
        if key not in values or key == "command":
            continue
        above, _, name = key.rpartition(".")
        if KEYS[key].order is Order.SETTINGS:
            lines += _settings(key, values[key], _comment(key, sources))
            continue
        if above != table:
            lines += ["", f"[{above}]"]
            table = above
        lines += _entry(name, values[key], _comment(key, sources))
    lines += _rules(values.get("command", ()), _comment("command", sources))
    return "\n".join(lines).lstrip("\n") + "\n"


def _comment(key: str, sources: Mapping[str, Iterable[str]] | None) -> str:
    if sources is None:
        return ""
    return f"  # {', '.join(sources.get(key, (BUILT_IN,)))}"


def _entry(name: str, value: Value, comment: str) -> list[str]:
    if not isinstance(value, tuple):
        return [f"{name} = {_scalar(value)}{comment}"]
    items = [_scalar(item) for item in cast("tuple[Value, ...]", value)]
    if len(items) <= _ON_ONE_LINE:
        return [f"{name} = [{', '.join(items)}]{comment}"]
    return [f"{name} = [{comment}", *(f"  {item}," for item in items), "]"]


def _settings(key: str, pairs: tuple[tuple[str, str], ...], comment: str) -> list[str]:
    if not pairs:
        return []
    lines = [f"{name} = {_scalar(value)}" for name, value in pairs]
    return ["", f"[{key}]{comment}", *lines]


def _rules(lists: tuple[tuple[CommandRule, ...], ...], comment: str) -> list[str]:
    lines: list[str] = []
    for number, rules in enumerate(lists):
        if number:
            # Not the same as one list: the strictest answer of all lists counts.
            lines += ["", "# a list of its own, from another file"]
        for rule in rules:
            lines += ["", f"[[command]]{comment}"]
            lines += [f"pattern = {_scalar(rule.pattern)}"]
            lines += [f"action = {_scalar(rule.action)}"]
            lines += [f"reason = {_scalar(rule.reason)}"] if rule.reason else []
    return lines


def _scalar(value: Value) -> str:
    if value is None:
        return _scalar(UNLIMITED)
    if isinstance(value, str):
        # JSON's escapes are TOML's, but for DEL, which TOML wants escaped too.
        return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    return json.dumps(value)
