"""Every key of a policy: its kind, its order from narrow to wide, what it is for. Pure.

One table, `KEYS`, feeds the parser, the narrowing of one file by another, the JSON
Schema and the text that ``bashd policy show`` prints. Adding a key here, and its field
to `bashd.core.policy.Policy`, makes it known to all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, cast

from bashd.core.kinds import FLAG, TEXT, Kind, limit, list_of, word
from bashd.core.model import Mode
from bashd.core.policy_values import (
    RULE_KINDS,
    check_device,
    check_kept_name,
    check_mask,
    check_metadata,
    check_name_pattern,
    check_path,
    check_rules,
    check_settings,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Value = Any
"""A value of some key; its kind has checked it, its key says what it is."""


class Order(Enum):
    """How two values of a key compare; `bashd.core.narrowing` has the rules."""

    SWITCH = "switch"
    """A boolean; false is narrower."""
    RANK = "rank"
    """A word; its place in the key's *words* counts, narrow first."""
    LIMIT = "limit"
    """A number; smaller is narrower, None is the widest."""
    PATHS = "paths"
    """Granted paths; each grants what lies below it too."""
    NAMES = "names"
    """Granted names, or beginnings followed by ``*``."""
    ADDED = "added"
    """Restrictions: more of them is narrower, so that files only add to one another."""
    RULES = "rules"
    """Lists of command rules; each further list may only refuse more."""
    FREE = "free"
    """Neither narrower nor wider."""
    SETTINGS = "settings"
    """Neither; files add to one another name by name."""

    @property
    def adds(self) -> bool:
        """Whether a file adds to what lies beneath instead of replacing it."""
        return self in (Order.ADDED, Order.RULES, Order.SETTINGS)

    @property
    def bounds(self) -> bool:
        """Whether there is a narrow and a wide end."""
        return self not in (Order.FREE, Order.SETTINGS)


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a policy file."""

    kind: Kind[Any]
    order: Order
    doc: str
    walls: bool = False
    """It speaks of walls, so it means nothing under danger-full-access."""
    takes_from: str | None = None
    """The key whose inherited entries this one takes out again."""
    words: tuple[str, ...] = ()


def _as_mode(kind: Kind[str]) -> Kind[Mode]:
    return Kind(lambda value: Mode(kind.check(value)), kind.schema)


def _item(
    check: Callable[[object], str], schema: Mapping[str, object] | None = None
) -> Kind[Any]:
    return list_of(Kind(check, schema or {"type": "string", "minLength": 1}))


_SETTINGS: Final = Kind(
    check_settings, {"type": "object", "additionalProperties": {"type": "string"}}
)
_NETWORKS: Final = ("none", "host")
_MODES: Final = tuple(str(mode) for mode in Mode)

KEYS: Final[Mapping[str, Key]] = {
    "description": Key(TEXT, Order.FREE, "One line for people."),
    "mode": Key(
        _as_mode(word(*_MODES)),
        Order.RANK,
        "How far a command may reach. A policy starts from the policy of its mode.",
        words=_MODES,
    ),
    "writable": Key(
        _item(check_path),
        Order.PATHS,
        "Roots writable besides the workspace, under workspace-write.",
        walls=True,
    ),
    "masked": Key(
        _item(check_mask),
        Order.ADDED,
        "Paths whose contents are hidden, besides the inherited ones; * ? [ may stand"
        " in the last component.",
        walls=True,
    ),
    "unmasked": Key(
        _item(check_mask),
        Order.FREE,
        "Inherited entries of masked that do not apply.",
        walls=True,
        takes_from="masked",
    ),
    "protected": Key(
        _item(check_metadata),
        Order.ADDED,
        "Metadata inside writable roots that stays as it is, besides the inherited.",
        walls=True,
    ),
    "unprotected": Key(
        _item(check_metadata),
        Order.FREE,
        "Inherited entries of protected that do not apply.",
        walls=True,
        takes_from="protected",
    ),
    "home": Key(
        word("private", "host"),
        Order.RANK,
        "The caller's home folder, or an empty one of the session's own in its place,"
        " with what writable and visible name.",
        walls=True,
        words=("private", "host"),
    ),
    "visible": Key(
        _item(check_path),
        Order.PATHS,
        "Paths in a private home that are there all the same, read-only.",
        walls=True,
    ),
    "scratch": Key(
        FLAG,
        Order.SWITCH,
        "Whether the session's private /tmp is writable.",
        walls=True,
    ),
    "network": Key(
        word(*_NETWORKS),
        Order.RANK,
        "The host's network, or a loopback of the session's own and nothing else.",
        walls=True,
        words=_NETWORKS,
    ),
    "nested": Key(
        FLAG,
        Order.SWITCH,
        "Whether bashd's own socket is there inside; who calls it from there stays"
        " as confined as it is.",
        walls=True,
    ),
    "namespaces": Key(
        FLAG,
        Order.SWITCH,
        "Whether commands may make namespaces (unshare, bwrap, a browser's sandbox).",
        walls=True,
    ),
    "devices": Key(
        _item(check_device, {"type": "string", "pattern": "^/dev/."}),
        Order.PATHS,
        "Devices granted besides the harmless ones: /dev/dri, /dev/kvm…",
        walls=True,
    ),
    "agents": Key(
        list_of(word("ssh", "gpg")),
        Order.NAMES,
        "Agents whose one socket is granted.",
        walls=True,
    ),
    "sockets.unix": Key(
        FLAG,
        Order.SWITCH,
        "Whether the landlock runner lets commands open Unix sockets; it cannot tell"
        " one path from another. Under bwrap they are walled by what is mounted.",
        walls=True,
    ),
    "sockets.grant": Key(
        _item(check_path), Order.PATHS, "Paths of Unix sockets granted.", walls=True
    ),
    "environment.keep": Key(
        _item(check_kept_name),
        Order.NAMES,
        "Ambient variables that may pass: names, or beginnings followed by *.",
    ),
    "environment.drop": Key(
        _item(check_name_pattern),
        Order.ADDED,
        "Ambient variables that may not, whatever environment.keep says.",
    ),
    "environment.default": Key(
        _SETTINGS,
        Order.SETTINGS,
        "Variables for callers that have none of that name; values as below.",
    ),
    "environment.set": Key(
        _SETTINGS,
        Order.SETTINGS,
        "Variables set for each command; a value may start with ~, $HOME or $TMPDIR.",
    ),
    "limits.pids": Key(limit(), Order.LIMIT, "Processes and threads at once."),
    "limits.memory_bytes": Key(limit(), Order.LIMIT, "Memory."),
    "limits.cpu_weight": Key(
        limit(1, 10_000), Order.LIMIT, "Share of the processor; the kernel's is 100."
    ),
    "limits.cpu_s": Key(limit(), Order.LIMIT, "Seconds of processor time a process."),
    "limits.job_s": Key(
        limit(),
        Order.LIMIT,
        "Seconds a job may be at work, from its first command on; then what runs is"
        " ended and nothing more begins. A job is a session that was opened or has a"
        " job's name; in others each call is one.",
    ),
    "limits.wall_s": Key(
        limit(),
        Order.LIMIT,
        "Seconds a foreground command may take, instead of the executor's default and"
        " cap.",
    ),
    "limits.file_size_bytes": Key(limit(0), Order.LIMIT, "Largest file written."),
    "limits.shm_bytes": Key(
        limit(),
        Order.LIMIT,
        "What /dev/shm of a bwrap cell holds; elsewhere it is the host's.",
    ),
    # Fewer would not let bash and the loader start. Source: the descriptors bash
    # itself uses (0-2, 10 and 255) and those of a dynamically linked program.
    "limits.open_files": Key(limit(16), Order.LIMIT, "Descriptors a process."),
    "limits.core_bytes": Key(limit(0), Order.LIMIT, "Largest core dump."),
    "command": Key(
        Kind(
            check_rules,
            {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {k: v.schema for k, v in RULE_KINDS.items()},
                    "required": ["pattern", "action"],
                    "additionalProperties": False,
                },
            },
        ),
        Order.RULES,
        "Rules over the text of a command, for the tools: the first match decides.",
    ),
}
"""Dotted key to what it is, in the order files and listings use."""

KINDS: Final[Mapping[str, Kind[Any]]] = {name: key.kind for name, key in KEYS.items()}


def schema() -> dict[str, object]:
    """Return the JSON Schema (2020-12) of a policy file, read as JSON."""
    root = _table()
    for name, key in KEYS.items():
        table = root
        *above, last = name.split(".")
        for part in above:
            properties = cast("dict[str, dict[str, object]]", table["properties"])
            table = properties.setdefault(part, _table())
        properties = cast("dict[str, dict[str, object]]", table["properties"])
        properties[last] = {"description": key.doc, **key.kind.schema}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "bashd policy",
        **root,
    }


def _table() -> dict[str, object]:
    return {"type": "object", "properties": {}, "additionalProperties": False}
