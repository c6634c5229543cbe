"""What single values of a policy file must be: paths, names, rules. Pure.

Each ``check_*`` returns the value as policies hold it or raises `BadValueError`, whose
text continues the key's name. `bashd.core.policy_schema` says which key is of which.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, cast

from bashd.core.kinds import (
    TEXT,
    BadValueError,
    Kind,
    clean_path,
    did_you_mean,
    shown,
    word,
)
from bashd.core.scrub import is_scrubbed

HOME: Final = "~"
"""How policies spell the caller's home folder; ``$HOME`` becomes this."""
RUNTIME_DIR: Final = "$XDG_RUNTIME_DIR"
_GLOB: Final = re.compile(r"[*?\[]")


def check_path(value: object, *, last_may_glob: bool = False) -> str:
    """Check a path: absolute, or below the home or the runtime folder."""
    if not isinstance(value, str) or not value:
        raise BadValueError(f"must be a path, not {shown(value)}")
    spelled = value
    if value == "$HOME" or value.startswith("$HOME/"):
        spelled = HOME + value.removeprefix("$HOME")
    start = next(
        (s for s in (HOME, RUNTIME_DIR) if spelled == s or spelled.startswith(s + "/")),
        "",
    )
    if not start and not spelled.startswith("/"):
        raise BadValueError(
            f"must be an absolute path, or start with ~, $HOME or {RUNTIME_DIR};"
            f" not {shown(value)}"
        )
    path = start + clean_path(spelled.removeprefix(start))
    if path == "/":
        raise BadValueError(
            'must be narrower than "/"; for no walls at all there is'
            ' mode = "danger-full-access"'
        )
    parent, _, last = path.rpartition("/")
    if _GLOB.search(parent) or (not last_may_glob and _GLOB.search(last)):
        where = "but in the last component" if last_may_glob else "here"
        raise BadValueError(f"must hold no *, ? or [ {where}, not {shown(value)}")
    return path


def check_mask(value: object) -> str:
    """Check a path whose last component may hold ``* ? [``."""
    return check_path(value, last_may_glob=True)


def check_metadata(value: object) -> str:
    """Check a path relative to a writable root."""
    if not isinstance(value, str) or not value or value[0] in "/~$":
        raise BadValueError(
            "must be a path relative to a writable root, such as .git/hooks;"
            f" not {shown(value)}"
        )
    path = clean_path(value)
    if _GLOB.search(path):
        raise BadValueError(f"must hold no *, ? or [, not {shown(value)}")
    return path


def check_device(value: object) -> str:
    """Check a path below /dev."""
    path = check_path(value)
    if not path.startswith("/dev/"):
        raise BadValueError(f"must be a path below /dev, not {shown(value)}")
    return path


def check_name_pattern(value: object) -> str:
    """Check a variable's name, or its beginning followed by ``*``."""
    if not isinstance(value, str) or not re.fullmatch(r"\w+\*?|\*", value, re.ASCII):
        raise BadValueError(
            "must be a variable's name, or its beginning followed by *;"
            f" not {shown(value)}"
        )
    return value


def check_kept_name(value: object) -> str:
    """Check a name to keep: one that the scrub takes could never be kept."""
    name = check_name_pattern(value)
    if is_scrubbed(name):
        raise BadValueError(
            f"must not name {shown(name)}: names with KEY, PASSWORD, SECRET or TOKEN,"
            " and BASHD_ names, are scrubbed before any policy is read; pass the"
            " variable with --env, or put it under environment.set"
        )
    return name


def check_settings(value: object) -> tuple[tuple[str, str], ...]:
    """Check a table of variables; returns pairs, sorted by name."""
    if not isinstance(value, Mapping):
        raise BadValueError(f"must be a table of strings, not {shown(value)}")
    table = cast("Mapping[str, object]", value)
    settings: list[tuple[str, str]] = []
    for name, setting in table.items():
        if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            raise BadValueError("must be named like a variable", f".{name}")
        if name.upper().startswith("BASHD_"):
            raise BadValueError(
                "must not be set: bashd sets BASHD_* itself", f".{name}"
            )
        if not isinstance(setting, str) or "\0" in setting:
            raise BadValueError(f"must be a string, not {shown(setting)}", f".{name}")
        settings.append((name, setting))
    return tuple(sorted(settings))


@dataclass(frozen=True, slots=True)
class CommandRule:
    """One ``[[command]]`` entry: a habit for the tool layer, not a wall."""

    pattern: str
    """Regular expression, searched anywhere in the command."""
    action: str
    """``allow``, ``ask`` or ``deny``."""
    reason: str = ""
    """What the model or the person reads."""


def _pattern(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise BadValueError(f"must be a regular expression, not {shown(value)}")
    try:
        re.compile(value)
    except (re.error, RecursionError, OverflowError) as error:
        raise BadValueError(
            f"must be a regular expression, not {shown(value)}: {error}"
        ) from None
    return value


_ACTION: Final = word("allow", "ask", "deny")
RULE_KINDS: Final[Mapping[str, Kind[str]]] = {
    "pattern": Kind(_pattern, {"type": "string", "format": "regex"}),
    "action": _ACTION,
    "reason": TEXT,
}


def _rule(value: object, at: str) -> CommandRule:
    if not isinstance(value, Mapping):
        raise BadValueError("must be a [[command]] table", at)
    table = cast("Mapping[str, object]", value)
    found: dict[str, str] = {}
    for name, item in table.items():
        if name not in RULE_KINDS:
            hint = did_you_mean(name, tuple(RULE_KINDS))
            raise BadValueError(f'must not hold the unknown key "{name}"{hint}', at)
        try:
            found[name] = RULE_KINDS[name].check(item)
        except BadValueError as error:
            raise BadValueError(error.text, f"{at}.{name}") from None
    for name in ("pattern", "action"):
        if name not in found:
            raise BadValueError(f'must hold the key "{name}"', at)
    return CommandRule(found["pattern"], found["action"], found.get("reason", ""))


def check_rules(value: object) -> tuple[tuple[CommandRule, ...], ...]:
    """Check the ``[[command]]`` tables of one file; returns one list, or none."""
    if not isinstance(value, list):
        raise BadValueError("must be written as [[command]] tables")
    entries = cast("list[object]", value)
    rules = tuple(_rule(entry, f"[{n}]") for n, entry in enumerate(entries))
    return (rules,) if rules else ()
