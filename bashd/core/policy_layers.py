"""Files laid over one another: the merged policy and what a user's file may not say.

Three ways to lay a file over a policy, all pure:

* `overlay`: the file's author may do anything. What the file states replaces what lies
  beneath, except that restrictions (masks, protected metadata, dropped variables,
  command rules) add to it; ``unmasked`` and ``unprotected`` take single ones out.
* `narrow`: the file may only take away; a key that would give is an error.
* `under_ceiling`: an administrator's bound on whatever came out of the files.

`with_mode` is ``--policy P --mode M`` and every grant: P under M's file rules.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from bashd.core.errors import ConfigError, NotAllowedError
from bashd.core.kinds import UNLIMITED, did_you_mean, shown
from bashd.core.model import Mode
from bashd.core.narrowing import meet, within
from bashd.core.policy import (
    BUILT_IN,
    EFFECT,
    Policy,
    PolicyFile,
    from_values,
    jsonable,
    values_of,
)
from bashd.core.policy_schema import KEYS, Order, Value

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bashd.core.ceiling import Ceiling

Sources = dict[str, tuple[str, ...]]

_DEFAULTS: Final = MappingProxyType(values_of(Policy("defaults")))
"""What a key that no file states is."""


def start(name: str) -> Policy:
    """Return the policy that no file has said anything about."""
    return Policy(name, sources=dict.fromkeys(EFFECT, (BUILT_IN,)))


def overlay(beneath: Policy, file: PolicyFile, *, name: str) -> Policy:
    """Lay *file* over *beneath* as its author wrote it.

    Args:
        beneath: The policy of the file's mode, or `start`.
        file: A shipped file, an administrator's, or a user's where there is no
            administrator.
        name: Of the result.

    Raises:
        ConfigError: A key that has no effect under the resulting mode, or one that
            takes out what is not there.
    """
    values = values_of(beneath)
    sources = dict(beneath.sources)
    if name != beneath.name:
        values["description"], sources["description"] = "", (BUILT_IN,)
    for key in file.values:
        if KEYS[key].takes_from is not None:
            _take_out(values, sources, key, file)
    for key, value in file.values.items():
        if KEYS[key].takes_from is None:
            values[key] = _laid_over(key, values[key], value)
            _note(sources, key, file.source, adds=KEYS[key].order.adds)
    _refuse_idle_keys(file, values["mode"])
    return from_values(name, values, sources)


def _laid_over(key: str, beneath: Value, stated: Value) -> Value:
    if KEYS[key].order is Order.SETTINGS:
        return tuple(sorted({**dict(beneath), **dict(stated)}.items()))
    if KEYS[key].order.adds:
        return tuple(dict.fromkeys((*beneath, *stated)))
    return stated


def _note(sources: Sources, key: str, source: str, *, adds: bool) -> None:
    before = sources.get(key, (BUILT_IN,)) if adds else ()
    kept = tuple(s for s in before if s not in (BUILT_IN, source))
    sources[key] = (*kept, source)


def _take_out(
    values: dict[str, Value], sources: Sources, key: str, file: PolicyFile
) -> None:
    target = KEYS[key].takes_from or key
    entries: tuple[str, ...] = file.values[key]
    for entry in entries:
        if entry not in values[target]:
            hint = did_you_mean(entry, values[target])
            raise ConfigError(
                f"{file.source}: {key}: {shown(entry)} is not {target} beneath this file"
                f"{hint or '; remove it'}"
            )
    values[target] = tuple(e for e in values[target] if e not in entries)
    _note(sources, target, file.source, adds=True)


def _refuse_idle_keys(file: PolicyFile, mode: Mode) -> None:
    """Refuse keys that the mode leaves without effect: they would mislead."""
    if mode is Mode.READ_ONLY and file.values.get("writable"):
        raise ConfigError(
            f'{file.source}: writable has no effect under mode = "read-only";'
            ' add mode = "workspace-write", or remove it'
        )
    if mode.confines:
        return
    for key, value in file.values.items():
        if KEYS[key].walls and value != _DEFAULTS.get(key, ()):
            raise ConfigError(
                f'{file.source}: {key} has no effect under mode = "{mode}", which has'
                " no walls; remove it, or choose a narrower mode"
            )


def narrow(beneath: Policy, file: PolicyFile, *, home: str) -> Policy:
    """Lay a user's *file* over the policy of the same name that is not the user's.

    Args:
        beneath: As shipped or as the administrator wrote it.
        file: The user's.
        home: The user's home folder; paths are compared with it put in.

    Raises:
        ConfigError: A key of the file is wider than what lies beneath.
    """
    values = values_of(beneath)
    sources = dict(beneath.sources)
    for name, value in file.values.items():
        key = KEYS[name]
        if key.takes_from is not None:
            if value:
                raise ConfigError(
                    f"{file.source}: {name} widens {key.takes_from}, which a user's"
                    " file may only add to; remove it, or ask the administrator"
                )
            continue
        if key.order.adds or not key.order.bounds:
            values[name] = _laid_over(name, values[name], value)
            _note(sources, name, file.source, adds=key.order.adds)
            continue
        if not within(key, value, values[name], home=home):
            most = _most(name, values[name], sources.get(name, (BUILT_IN,)))
            raise ConfigError(_wider(file.source, name, value, most))
        if value != values[name]:
            values[name] = value
            _note(sources, name, file.source, adds=False)
    _refuse_idle_keys(file, values["mode"])
    return from_values(beneath.name, values, sources)


def _said(name: str, value: Value) -> str:
    """Return a value as a policy file says it."""
    if value is None and KEYS[name].order is Order.LIMIT:
        return f'"{UNLIMITED}"'
    return shown(jsonable(value))


def _most(name: str, value: Value, sources: Iterable[str]) -> str:
    return f"{_said(name, value)}, the most that {', '.join(sources)} allows"


def _wider(source: str, name: str, value: Value, most: str) -> str:
    return (
        f"{source}: {name} = {_said(name, value)} is wider than {most};"
        " remove it, make it narrower, or ask the administrator"
    )


def under_ceiling(
    policy: Policy, ceiling: Ceiling, *, home: str, user_files: Iterable[str] = ()
) -> Policy:
    """Return what of *policy* the ceiling allows.

    What a user's file says beyond the ceiling is an error; what the shipped and the
    administrator's files say beyond it is cut to it, except the mode, which is never
    changed behind the caller's back.

    Args:
        policy: As merged.
        ceiling: The caller's.
        home: The caller's home folder.
        user_files: Sources that are the user's.

    Raises:
        ConfigError: A user's file says more than the ceiling allows.
        NotAllowedError: The policy's mode is wider than the ceiling's, or has no walls
            to keep one of its keys with.
    """
    if not ceiling.values:
        return policy
    theirs = frozenset(user_files)
    values = values_of(policy)
    sources = dict(policy.sources)
    for name, bound in ceiling.values.items():
        key = KEYS[name]
        if within(key, values[name], bound, home=home):
            continue
        source = ceiling.sources[name]
        written = theirs.intersection(sources.get(name, ()))
        if written and not key.order.adds:
            most = _most(name, bound, (source,))
            raise ConfigError(_wider(min(written), name, values[name], most))
        if name == "mode":
            raise NotAllowedError(
                f'the mode "{policy.mode}" of policy "{policy.name}" is wider than'
                f' "{bound}", the most that {source} allows'
            )
        values[name] = meet(key, values[name], bound, home=home)
        _note(sources, name, source, adds=key.order.adds)
    _refuse_broken_walls(policy, ceiling)
    bounded = from_values(policy.name, values, sources)
    return replace(bounded, writable_within=ceiling.values.get("writable"))


def _refuse_broken_walls(policy: Policy, ceiling: Ceiling) -> None:
    if policy.mode.confines:
        return
    for name in ceiling.values:
        if KEYS[name].walls:
            raise NotAllowedError(
                f'the mode "{policy.mode}" has no walls, so it cannot keep {name} as'
                f" {ceiling.sources[name]} demands; use a narrower mode"
            )


def with_mode(policy: Policy, of_mode: Policy) -> Policy:
    """Return *policy* with the file rules of another mode and its own rest.

    Restrictions of both hold. A policy without walls has nothing to say about them, so
    all of those come from *of_mode*.

    Args:
        policy: The policy of the call or its session.
        of_mode: The policy named after the mode asked for.
    """
    if policy.mode is of_mode.mode:
        return policy
    theirs = values_of(of_mode)
    values = values_of(policy)
    sources = dict(policy.sources)
    taken = {"mode", "writable"}
    if not policy.mode.confines:
        taken |= {name for name in EFFECT if KEYS[name].walls}
    for name in taken:
        values[name] = theirs[name]
        sources[name] = of_mode.sources.get(name, (BUILT_IN,))
    for name in {"masked", "protected", "scratch"} - taken:
        joined = meet(KEYS[name], values[name], theirs[name], home="/")
        if joined != values[name]:
            values[name] = joined
            for source in of_mode.sources.get(name, ()):
                _note(sources, name, source, adds=name != "scratch")
    return from_values(policy.name, values, sources)
