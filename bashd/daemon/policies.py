"""From policy files to the policy of a call.

Theory of operation. Three folders have a say, lowest first: the shipped policies, the
administrator's (``/etc/bashd/policies``) and the user's (``$XDG_CONFIG_HOME/bashd/
policies``).

* A shipped or administrator's NAME.toml starts from the policy of its mode (M.toml as
  the administrator left it) and may say anything; the administrator's replaces the
  shipped one of that name.
* Where ``/etc/bashd`` exists, a user's NAME.toml may only narrow the NAME beneath it. A
  name of the user's own starts from M.toml and is bound by the ``[ceiling]``.
* Where there is no ``/etc/bashd``, nobody has set bounds: the user's file stands as
  written, as an administrator's would.
* A file named after a mode is never wider than its name.

Every path that was looked at is remembered with its stamp, missing ones included. A
call checks the stamps and gets the same `Policy` object back while none has changed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bashd.core.ceiling import Ceiling, Ceilings, join
from bashd.core.config import parse_config
from bashd.core.errors import ConfigError, InvalidParamsError
from bashd.core.kinds import did_you_mean
from bashd.core.model import Mode
from bashd.core.policy import Policy, PolicyFile, check_name, expand, parse_policy
from bashd.core.policy_layers import narrow, overlay, start, under_ceiling, with_mode
from bashd.daemon.policy_files import (
    Read,
    Stamp,
    TakeStamp,
    read_text,
    shipped_dir,
    take_stamp,
)

if TYPE_CHECKING:
    from collections.abc import Callable

SYSTEM_DIR: Final = "/etc/bashd"

_CACHED: Final = 1024
"""Merged policies kept: users times the few names each of them uses."""
_SETTLED_NS: Final = 50_000_000
"""A younger file is read again: within one tick of the kernel's coarse clock (10 ms at
100 Hz) two versions of a file of one length may carry the same stamp."""

_OTHERS_MAY_WRITE: Final = 0o022

SHIPPED: Final = ("read-only", "workspace-write", "danger-full-access", "ci")


@dataclass(frozen=True, slots=True)
class User:
    """Whose policies are meant, as far as policies care."""

    name: str
    """Login name."""
    groups: tuple[str, ...]
    """Names of all groups."""
    home: str
    config_home: str
    """``$XDG_CONFIG_HOME``, or ``~/.config``."""
    runtime_dir: str | None = None
    """``$XDG_RUNTIME_DIR``; None where there is none."""

    @property
    def policies(self) -> str:
        """The folder of the user's own policies."""
        return f"{self.config_home.rstrip('/')}/bashd/policies"


@dataclass(slots=True)
class _Cached:
    policy: Policy
    stamps: dict[str, tuple[TakeStamp, Stamp | None]]

    def still_holds(self) -> bool:
        return all(take(path) == before for path, (take, before) in self.stamps.items())


@dataclass(slots=True)
class PolicyStore:
    """Loads policies and keeps what it loaded while the files stay as they are.

    Blocking: where a user's files may be slow, call it from a thread; several may.
    """

    ceilings: Ceilings = field(default_factory=Ceilings)
    """From the daemon's configuration; those of ``/etc/bashd/bashd.toml`` hold too."""
    shipped: str = field(default_factory=shipped_dir)
    """Folder of the shipped policies."""
    system: str = SYSTEM_DIR
    """The administrator's folder."""
    system_owner: int = 0
    """Uid to which everything in it must belong."""
    # Several threads may load at once: each step on the dict is one operation.
    _cache: dict[tuple[object, ...], _Cached] = field(
        default_factory=dict[tuple[object, ...], _Cached]
    )

    def load(
        self,
        name: str,
        user: User,
        *,
        mode: Mode | None = None,
        read: Read = read_text,
        stamp: TakeStamp | None = take_stamp,
    ) -> Policy:
        """Return a policy as it holds for a user, with absolute paths.

        Args:
            name: Of the policy.
            user: The caller.
            mode: The mode of the call; None is the policy's own.
            read: Reads the user's files; a root daemon gives one that opens as the
                peer.
            stamp: Stamps the user's files likewise; None reads them on every call.

        Raises:
            ConfigError: A file that has a say is wrong; names file, key and fix.
            InvalidParamsError: No policy has that name.
            NotAllowedError: The mode is beyond the caller's ceiling.
        """
        key = (name, user, mode)
        cached = self._cache.get(key)
        if cached is not None and cached.still_holds():
            return cached.policy
        build = _Build(self, user, read, stamp)
        merged = build.effective(name, mode)
        policy = expand(merged, user.home, user.runtime_dir)
        if build.may_cache():
            if len(self._cache) >= _CACHED:
                self._cache.clear()
            self._cache[key] = _Cached(policy, build.stamps)
        else:
            self._cache.pop(key, None)
        return policy

    def merged(
        self, name: str, user: User, *, read: Read = read_text, bounded: bool = True
    ) -> Policy:
        """Return a policy with its paths as the files spell them, for people.

        Args:
            name: Of the policy.
            user: Whose.
            read: Reads the user's files.
            bounded: Whether the ceiling counts.

        Raises:
            BashdError: As for `load`.
        """
        build = _Build(self, user, read, None)
        return build.effective(name, None) if bounded else build.user_layer(name)

    def ceiling(self, user: User) -> Ceiling:
        """Return the caller's bound: the configuration's and ``/etc/bashd``'s.

        Raises:
            ConfigError: ``/etc/bashd/bashd.toml`` is wrong.
        """
        return _Build(self, user, read_text, None).ceiling()


class _Build:
    """One merge: reads what has a say and remembers what it looked at."""

    def __init__(
        self, store: PolicyStore, user: User, read: Read, stamp: TakeStamp | None
    ) -> None:
        self._store = store
        self._user = user
        self._read = read
        self._stamp = stamp
        self._user_files: set[str] = set()
        self.stamps: dict[str, tuple[TakeStamp, Stamp | None]] = {}

    def may_cache(self) -> bool:
        """Whether the stamps would tell every later change."""
        if self._stamp is None:
            return False
        now = time.time_ns()
        return not any(
            seen is not None and 0 <= now - seen.ctime_ns < _SETTLED_NS
            for _, seen in self.stamps.values()
        )

    def effective(self, name: str, mode: Mode | None) -> Policy:
        policy = self.user_layer(check_name(name))
        if mode is not None and mode is not policy.mode:
            policy = with_mode(policy, self.user_layer(str(mode)))
        return under_ceiling(
            policy,
            self.ceiling(),
            home=self._user.home,
            user_files=self._user_files,
        )

    def ceiling(self) -> Ceiling:
        path = f"{self._store.system}/bashd.toml"
        text = self._system_text(path)
        ceilings = [self._store.ceilings]
        if text is not None:
            ceilings.append(parse_config(text, path).ceilings)
        user = self._user
        first, *rest = (c.of(user.name, user.groups, home=user.home) for c in ceilings)
        for other in rest:
            first = join(first, other, home=user.home)
        return first

    def user_layer(self, name: str) -> Policy:
        file = self._user_file(name)
        beneath = self._system_layer(name)
        if file is None:
            if beneath is None:
                raise self._unknown(name)
            return beneath
        if beneath is None or not self._has_administrator():
            return self._overlaid(file, name, self.user_layer)
        asked: Mode = file.values.get("mode", beneath.mode)
        if beneath.mode.is_wider_than(asked):
            # The walls of the narrower mode are the administrator's to say.
            beneath = with_mode(beneath, self._system_layer(str(asked)) or beneath)
        return narrow(beneath, file, home=self._user.home)

    def _has_administrator(self) -> bool:
        return self._look(self._store.system, take_stamp) is not None

    def _system_layer(self, name: str) -> Policy | None:
        path = f"{self._store.system}/policies/{name}.toml"
        text = self._system_text(path)
        if text is None:
            return self._shipped_layer(name)
        return self._overlaid(parse_policy(text, path), name, self._system_layer)

    def _shipped_layer(self, name: str) -> Policy | None:
        path = f"{self._store.shipped}/{name}.toml"
        self._look(path, take_stamp)
        text = read_text(path)
        if text is None:
            if name in _MODE_NAMES:
                # Never without it: its masks are what everything else starts from.
                raise ConfigError(
                    f"{path}: missing; bashd's installation is incomplete, so install"
                    " it again"
                )
            return None
        file = parse_policy(text, path)
        if file.values.get("mode") == name:
            return overlay(start(name), file, name=name)
        return self._overlaid(file, name, self._system_layer)

    def _overlaid(
        self, file: PolicyFile, name: str, layer: Callable[[str], Policy | None]
    ) -> Policy:
        own = _MODE_NAMES.get(name)
        mode: Mode = file.values.get("mode", own or Mode.READ_ONLY)
        if own is not None and mode.is_wider_than(own):
            raise ConfigError(
                f'{file.source}: mode = "{mode}" is wider than "{own}", after which'
                " the file is named; remove it, or give the file another name"
            )
        beneath = self._shipped_layer(name) if mode is own else layer(str(mode))
        return overlay(beneath or start(name), file, name=name)

    def _user_file(self, name: str) -> PolicyFile | None:
        path = f"{self._user.policies}/{name}.toml"
        if self._stamp is not None:
            self._look(path, self._stamp)
        text = self._read(path)
        if text is None:
            return None
        self._user_files.add(path)
        return parse_policy(text, path)

    def _system_text(self, path: str) -> str | None:
        if not self._has_administrator():
            return None
        for place in dict.fromkeys((self._store.system, str(Path(path).parent), path)):
            seen = self._look(place, take_stamp)
            if seen is None:
                return None
            if seen.uid != self._store.system_owner or seen.mode & _OTHERS_MAY_WRITE:
                raise ConfigError(
                    f"{place}: must belong to root and be writable by root alone,"
                    f" since it bounds others; chown root {place} and chmod go-w"
                    f" {place}"
                )
        return read_text(path)

    def _look(self, path: str, take: TakeStamp) -> Stamp | None:
        # Before the read: a change in between shows as another stamp next time.
        seen = take(path)
        self.stamps.setdefault(path, (take, seen))
        return seen

    def _unknown(self, name: str) -> InvalidParamsError:
        hint = did_you_mean(name, SHIPPED) or "; shipped: " + ", ".join(SHIPPED)
        return InvalidParamsError(
            f'no policy is named "{name}"{hint}; others are looked for in'
            f" {self._user.policies} and {self._store.system}/policies"
        )


_MODE_NAMES: Final = {str(mode): mode for mode in Mode}
