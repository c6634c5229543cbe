"""What a command's environment is made of, layer by layer. Pure.

The layers, later wins: the caller's ambient environment, scrubbed; the session's
TMPDIR; the policy's defaults; terminal defaults fit for a model; the policy's settings;
the call's explicit entries; managed ``BASHD_*`` facts. The scrub knows names only: a credential
under an innocent name (``DATABASE_URL``, ``DB_PASS``) passes, and the README says so.

The scrub itself is in `bashd.core.scrub`, which the thin client imports on every call.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bashd.core.errors import InvalidParamsError
from bashd.core.scrub import scrub

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_MANAGED_NAME: Final = re.compile("BASHD_[A-Z][A-Z0-9_]*")

TERMINAL: Final[Mapping[str, str]] = {
    "NO_COLOR": "1",
    "TERM": "dumb",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    # No terminal is attached: a prompt or an editor would wait until the timeout.
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_EDITOR": "true",
}
"""Defaults for programs that would otherwise colour, page, prompt or edit."""

_TEMPORARY: Final = ("TMPDIR", "TMP", "TEMP")

RESERVED: Final = ("BASHD_SHELL", "BASHD_HOME", "BASHD_SESSION_ID")
"""Facts of bashd's own; no contributor may declare them."""


def name_matches(name: str, pattern: str) -> bool:
    """Whether *pattern* (a name, or a beginning followed by ``*``) names *name*."""
    if pattern.endswith("*"):
        return name.startswith(pattern[:-1])
    return name == pattern


@dataclass(frozen=True, slots=True)
class EnvironmentRules:
    """What a policy says about the ambient environment; see `compose`."""

    keep: tuple[str, ...] = ("*",)
    """Ambient variables that may pass; a name, or a beginning followed by ``*``."""
    drop: tuple[str, ...] = ()
    """Ambient variables that may not, even if *keep* names them."""
    default: tuple[tuple[str, str], ...] = ()
    """Variables for callers that sent none of that name; values as in *set*."""
    set: tuple[tuple[str, str], ...] = ()
    """Variables of the policy's own. A value that starts with ``~``, ``$HOME`` or
    ``$TMPDIR`` starts with that folder instead."""

    @property
    def filters(self) -> bool:
        """Whether there is anything that `passes` would refuse."""
        return "*" not in self.keep or bool(self.drop)

    def passes(self, name: str) -> bool:
        """Whether an ambient variable that the scrub left may pass."""
        return any(name_matches(name, pattern) for pattern in self.keep) and not any(
            name_matches(name, pattern) for pattern in self.drop
        )


_NO_RULES: Final = EnvironmentRules()


@dataclass(frozen=True, slots=True)
class Facts:
    """What bashd itself knows about the caller, its session and its folders."""

    home: str
    """The caller's home folder by passwd; for a caller that sent no HOME."""
    user: str
    """The caller's login name by passwd; for a caller that sent no USER."""
    bashd_home: str
    """Absolute; see `choose_bashd_home`."""
    tmpdir: str | None = None
    """Existing writable folder as the command sees it; None leaves TMPDIR alone."""
    session_id: str | None = None
    session_log: str | None = None
    """Path of the session's log; None where it is not known."""


@dataclass(frozen=True, slots=True)
class Composed:
    """A command's whole environment and the receipt of what it lacks."""

    env: dict[str, str]
    removed: tuple[str, ...]
    """Names the scrub or the policy took and nothing put back, sorted."""


def compose(
    ambient: Mapping[str, str],
    *,
    facts: Facts,
    rules: EnvironmentRules = _NO_RULES,
    explicit: Mapping[str, str | None] | None = None,
    managed: Mapping[str, str] | None = None,
    already_removed: Iterable[str] = (),
) -> Composed:
    """Build the environment of one command; neither argument is changed.

    Args:
        ambient: The caller's environment; scrubbed here whether or not it was before.
        facts: bashd's own knowledge.
        rules: The policy's.
        explicit: Entries of the call, never scrubbed; None removes the variable.
        managed: ``BASHD_*`` values that win over everything; they may restate a fact
            and may say where the caller's BASHD_HOME and session log are.
        already_removed: Names that the client's scrub took before.

    Raises:
        InvalidParamsError: A name or a value that no process can have, or a managed
            key that is not bashd's or contradicts a fact.
    """
    _check_entries(ambient, "the caller's environment")
    kept, scrubbed = scrub(ambient)
    env = dict(kept)
    if rules.filters:
        env = {name: value for name, value in kept.items() if rules.passes(name)}
    taken = {*already_removed, *scrubbed, *(kept.keys() - env.keys())}
    _fill_in(env, facts)
    for name, value in rules.default:
        env.setdefault(name, _start_with_folder(value, env))
    env.update(TERMINAL)
    for name, value in rules.set:
        env[name] = _start_with_folder(value, env)
    _apply_explicit(env, explicit or {})
    env.update(_managed(managed or {}, facts))
    return Composed(env, tuple(sorted(taken - env.keys())))


def _fill_in(env: dict[str, str], facts: Facts) -> None:
    for name, value in (
        ("HOME", facts.home),
        ("USER", facts.user),
        ("LOGNAME", facts.user),
    ):
        if not env.get(name):
            env[name] = value
    if facts.tmpdir is not None:
        env.update(dict.fromkeys(_TEMPORARY, facts.tmpdir))


def _start_with_folder(value: str, env: Mapping[str, str]) -> str:
    for prefix, folder in (("~", "HOME"), ("$HOME", "HOME"), ("$TMPDIR", "TMPDIR")):
        if value == prefix or value.startswith(prefix + "/"):
            # Without a TMPDIR of the session's the caller's, or the system's, serves.
            start = env.get(folder) or "/tmp"  # noqa: S108 - the system's default
            return start + value[len(prefix) :]
    return value


def _apply_explicit(env: dict[str, str], explicit: Mapping[str, str | None]) -> None:
    for name, value in explicit.items():
        if value is None:
            env.pop(name, None)
        else:
            _check_entry(name, value, "env")
            env[name] = value


def managed_facts(facts: Facts) -> dict[str, str]:
    """Return the ``BASHD_*`` variables bashd sets itself, made anew for each call."""
    known = {
        "BASHD_SHELL": "1",
        "BASHD_HOME": facts.bashd_home,
        "BASHD_SESSION_ID": facts.session_id,
        "BASHD_SESSION_JSONL": facts.session_log,
    }
    return {name: value for name, value in known.items() if value is not None}


def _managed(managed: Mapping[str, str], facts: Facts) -> dict[str, str]:
    known = managed_facts(facts)
    for name, value in managed.items():
        _check_managed(name, value, "managed_env")
        if (
            name in ("BASHD_SHELL", "BASHD_SESSION_ID")
            and known.get(name, value) != value
        ):
            raise InvalidParamsError(
                f"managed_env may not change {name}: bashd sets it; leave it out"
            )
    return known | dict(managed)


@dataclass(frozen=True, slots=True)
class Contribution:
    """Managed variables that one part of the caller adds for one call."""

    owner: str
    """Who adds them; unique, for messages."""
    keys: tuple[str, ...]
    """Every key the owner may set, declared beforehand."""
    values: Mapping[str, str]


def contribute(contributions: Iterable[Contribution]) -> dict[str, str]:
    """Join contributions into one managed environment.

    Raises:
        InvalidParamsError: Two owners of one name, a key declared twice, reserved,
            misspelled or not declared, or a value that is not a string.
    """
    owner_of_key: dict[str, str] = {}
    owners: set[str] = set()
    joined: dict[str, str] = {}
    for part in contributions:
        if part.owner in owners:
            raise InvalidParamsError(
                f'two contributors of managed variables are named "{part.owner}"'
            )
        owners.add(part.owner)
        for key in part.keys:
            _declare(key, part.owner, owner_of_key)
        for name, value in part.values.items():
            if owner_of_key.get(name) != part.owner:
                raise InvalidParamsError(
                    f'contributor "{part.owner}" sets {name} without declaring it'
                )
            _check_managed(name, value, f'contributor "{part.owner}"')
            joined[name] = value
    return joined


def _declare(key: str, owner: str, owner_of_key: dict[str, str]) -> None:
    if key in RESERVED:
        raise InvalidParamsError(
            f'contributor "{owner}" declares {key}, which is reserved for bashd'
        )
    _check_managed(key, "", f'contributor "{owner}"')
    if key in owner_of_key:
        raise InvalidParamsError(
            f'contributors "{owner_of_key[key]}" and "{owner}" both declare {key}'
        )
    owner_of_key[key] = owner


def choose_bashd_home(
    configured: str | None, ambient: str | None, *, home: str, cwd: str
) -> str:
    """Return the absolute BASHD_HOME.

    Args:
        configured: From the configuration.
        ambient: ``$BASHD_HOME`` of whoever asks; a blank one does not count.
        home: The caller's home folder, whose ``.bashd`` is the default.
        cwd: What relative values are relative to.
    """
    chosen = configured or (ambient or "").strip() or posixpath.join(home, ".bashd")
    return posixpath.normpath(posixpath.join(cwd, chosen))


def _check_managed(name: str, value: object, where: str) -> None:
    if not _MANAGED_NAME.fullmatch(name):
        raise InvalidParamsError(
            f"{where}: {name!r} is no managed variable; such a name starts with"
            " BASHD_, a capital letter next, then capitals, digits and _ only"
        )
    if not isinstance(value, str):
        raise InvalidParamsError(
            f"{where}: {name} must be a string, not {type(value).__name__}"
        )
    _check_entry(name, value, where)


def _check_entries(env: Mapping[str, str], where: str) -> None:
    for name, value in env.items():
        # The common case in one expression: this runs for every variable of a call.
        if not name or "=" in name or "\0" in name or "\0" in value:
            _check_entry(name, value, where)


def _check_entry(name: str, value: object, where: str) -> None:
    """Refuse what execve cannot pass. Source: environ(7)."""
    if not name or "=" in name or "\0" in name:
        raise InvalidParamsError(
            f"{where}: {name!r} cannot name a variable; a name is not empty and holds"
            " neither = nor NUL"
        )
    if not isinstance(value, str):
        raise InvalidParamsError(
            f"{where}: {name} must be a string, not {type(value).__name__}"
        )
    if "\0" in value:
        raise InvalidParamsError(
            f"{where}: the value of {name} holds a NUL, which no environment can carry;"
            " pass it through stdin or a file"
        )
