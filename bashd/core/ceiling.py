"""The administrator's ``[ceiling]``: the most that a policy may allow, and to whom. Pure.

    [ceiling]                       # everybody
    mode = "workspace-write"
    network = "none"

    [ceiling.group.builders]        # members of a group
    mode = "danger-full-access"

    [ceiling.user.alice.quotas]     # one user
    sessions = 10

For each key the most specific table that states it decides: the user's, else the
groups' (the narrowest of them), else the one for everybody. Keys are those of a policy,
``default_policy``, and ``quotas`` (the keys of ``[limits]``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, cast

from bashd.core.errors import ConfigError
from bashd.core.kinds import Kind, shown
from bashd.core.model import Mode
from bashd.core.narrowing import meet
from bashd.core.policy import NAME
from bashd.core.policy_schema import KEYS, Value
from bashd.core.tables import read_keys

_BOUNDS: Final = {
    name: key.kind
    for name, key in KEYS.items()
    if key.order.bounds and key.takes_from is None
}
"""Keys with an order from narrow to wide: only those can be bounded."""
_QUOTAS: Final = "quotas."
_DEFAULT_POLICY: Final = "default_policy"

Table = Mapping[str, Value]


def _nothing() -> Mapping[str, Value]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The bound for one caller. Keys it does not hold are free."""

    values: Mapping[str, Value] = field(default_factory=_nothing)
    """Dotted policy key to the widest value allowed."""
    sources: Mapping[str, str] = field(default_factory=_nothing)
    """Dotted policy key to the place that says so."""
    default_policy: str | None = None
    """Policy of a call that names none; None leaves the daemon's default."""
    quotas: Mapping[str, Value] = field(default_factory=_nothing)
    """Keys of ``[limits]`` that differ for this caller."""

    @property
    def mode(self) -> Mode:
        """The widest mode."""
        return self.values.get("mode", Mode.DANGER_FULL_ACCESS)

    def clamp(self, mode: Mode) -> Mode:
        """Return *mode*, or the ceiling's where that is narrower."""
        return self.mode if mode.is_wider_than(self.mode) else mode


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Every ``[ceiling]`` table of one configuration file."""

    source: str = ""
    everybody: Table = field(default_factory=_nothing)
    groups: Mapping[str, Table] = field(default_factory=_nothing)
    users: Mapping[str, Table] = field(default_factory=_nothing)

    def of(self, user: str, groups: Iterable[str], *, home: str) -> Ceiling:
        """Return what holds for one caller.

        Args:
            user: Login name.
            groups: Names of all groups the caller is in.
            home: The caller's home folder, to compare paths.
        """
        stated: dict[str, tuple[Value, str]] = {
            key: (value, f"{self.source} [ceiling]")
            for key, value in self.everybody.items()
        }
        stated |= self._of_groups(groups, home)
        for key, value in self.users.get(user, {}).items():
            stated[key] = (value, f"{self.source} [ceiling.user.{user}]")
        bounds = {key: pair for key, pair in stated.items() if key in _BOUNDS}
        default = stated.get(_DEFAULT_POLICY)
        return Ceiling(
            MappingProxyType({key: value for key, (value, _) in bounds.items()}),
            MappingProxyType({key: source for key, (_, source) in bounds.items()}),
            default[0] if default else None,
            MappingProxyType(
                {
                    key.removeprefix(_QUOTAS): value
                    for key, (value, _) in stated.items()
                    if key.startswith(_QUOTAS)
                }
            ),
        )

    def _of_groups(
        self, groups: Iterable[str], home: str
    ) -> dict[str, tuple[Value, str]]:
        members = frozenset(groups)
        found: dict[str, tuple[Value, str]] = {}
        for group in (name for name in self.groups if name in members):
            source = f"{self.source} [ceiling.group.{group}]"
            for key, value in self.groups[group].items():
                if key in found:
                    narrower = _narrower(key, found[key][0], value, home)
                    if narrower == found[key][0]:
                        continue
                    found[key] = (narrower, source)
                else:
                    found[key] = (value, source)
        return found


def _narrower(key: str, a: Value, b: Value, home: str) -> Value:
    if key in _BOUNDS:
        return meet(KEYS[key], a, b, home=home)
    if key.startswith(_QUOTAS):
        return min(a, b)
    return a


def join(first: Ceiling, second: Ceiling, *, home: str) -> Ceiling:
    """Return the bound that keeps both; *first* wins where there is no order."""
    values = dict(first.values)
    sources = dict(first.sources)
    for key, value in second.values.items():
        both = (
            meet(KEYS[key], values[key], value, home=home) if key in values else value
        )
        if key not in values or both != values[key]:
            values[key], sources[key] = both, second.sources[key]
    return Ceiling(
        MappingProxyType(values),
        MappingProxyType(sources),
        first.default_policy or second.default_policy,
        MappingProxyType({**second.quotas, **first.quotas}),
    )


def parse_ceilings(
    table: Mapping[str, object], quotas: Mapping[str, Kind[Any]], source: str
) -> Ceilings:
    """Parse the ``[ceiling]`` table of a configuration file.

    Args:
        table: As TOML gives it.
        quotas: The keys of ``[limits]``.
        source: The file's path, for messages.

    Raises:
        ConfigError: Names the file, the key and the fix.
    """
    kinds = {
        **_BOUNDS,
        _DEFAULT_POLICY: NAME,
        **{_QUOTAS + key: kind for key, kind in quotas.items()},
    }
    general = {k: v for k, v in table.items() if k not in ("user", "group")}
    return Ceilings(
        source,
        _one_table(general, kinds, source, "ceiling."),
        _named_tables(table.get("group"), kinds, source, "ceiling.group."),
        _named_tables(table.get("user"), kinds, source, "ceiling.user."),
    )


def _named_tables(
    tables: object, kinds: Mapping[str, Kind[Any]], source: str, prefix: str
) -> Mapping[str, Table]:
    found: dict[str, Table] = {}
    for name, table in _as_table(tables or {}, source, prefix.rstrip(".")).items():
        inner = _as_table(table, source, prefix + name)
        found[name] = _one_table(inner, kinds, source, f"{prefix}{name}.")
    return MappingProxyType(found)


def _one_table(
    table: Mapping[str, object],
    kinds: Mapping[str, Kind[Any]],
    source: str,
    prefix: str,
) -> Table:
    return MappingProxyType(read_keys(table, kinds, source, prefix=prefix))


def _as_table(value: object, source: str, key: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{source}: {key} must be a table, not {shown(value)}")
    return cast("Mapping[str, object]", value)
