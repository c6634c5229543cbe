"""Who is calling: the kernel's word on every message, never the client's.

Every chunk that arrives carries its sender's pid, uid and gid, stamped by the kernel
(SO_PASSCRED), because a connected descriptor can be handed on: the process that speaks
need not be the one that connected. A sender is judged once and remembered by its pidfd;
as long as that process lives its pid cannot mean another one, so later chunks cost one
poll. no_new_privs separates our confined commands from everyone else: it is set before
a command starts, inherited by all its children and can never be cleared. A process
without it is not one of ours; a process with it is confined by somebody, and
`bashd.daemon.access` says what it may still do.

Kernels before 6.5 give no pidfd with a message. There a sender is looked up by number,
and must have started before its connection was accepted: a number cannot have been
recycled between the message and the look-up for a process that is older than both.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from bashd.core.errors import NotAllowedError
from bashd.daemon.access import ConfinedAs
from bashd.daemon.credentials import (
    ENDED,
    NO_PIDFD,
    UCRED,
    Credentials,
    Standing,
    read_standing,
    started_at,
    units_of,
)

if TYPE_CHECKING:
    from bashd.daemon.identity import Identity

_MAX_SENDERS: Final = 8
"""Processes remembered per connection; more than a client that forks workers has."""
_SENDER_ENDED: Final = (
    "the process that sent this request has ended; a request is served only while its"
    " sender lives"
)


@dataclass(frozen=True, slots=True)
class Caller:
    """The process behind one request."""

    identity: Identity
    """As whom it is served."""
    pid: int
    confined: ConfinedAs | None
    """None: an ordinary caller."""

    @property
    def uid(self) -> int:
        """Its uid."""
        return self.identity.uid

    @property
    def gid(self) -> int:
        """Its primary group."""
        return self.identity.gid

    @property
    def groups(self) -> tuple[int, ...]:
        """Its supplementary groups, from the kernel."""
        return self.identity.groups

    @property
    def name(self) -> str:
        """Its user name."""
        return self.identity.name

    @property
    def home(self) -> str:
        """Its home folder by passwd."""
        return self.identity.home

    @property
    def shell(self) -> str:
        """Its login shell by passwd."""
        return self.identity.shell


class Exemptions:
    """The units whose processes are ordinary callers although they are confined.

    Args:
        listed: ``[daemon] confined_callers``: names of systemd units.
        own: Units the daemon itself is in. Commands run below it, so exempting one of
            these would exempt every command: they are left out.
    """

    def __init__(self, listed: Iterable[str], own: frozenset[str]) -> None:
        self.ignored = frozenset(listed) & own
        """Listed in vain."""
        self._listed = frozenset(listed) - own

    def cover(self, pid: int) -> bool:
        """Whether a live process is in a listed unit."""
        return bool(self._listed) and self.cover_units(units_of(pid))

    def cover_units(self, units: frozenset[str]) -> bool:
        """Whether one of *units* is listed."""
        return not self._listed.isdisjoint(units)


CellOf = Callable[[int], ConfinedAs | None]
"""Which live cell of this daemon holds the process; None: none that is known."""


def judge(
    pid: int, standing: Standing, cell_of: CellOf, exemptions: Exemptions
) -> ConfinedAs | None:
    """Say what a live process is confined to; None for an ordinary caller.

    A cell is looked for first: an exemption never widens one of our own commands.
    """
    if not standing.no_new_privs:
        return None
    held = cell_of(pid)
    if held is not None:
        return held
    return None if exemptions.cover(pid) else ConfinedAs()


class _Sender:
    """One process that speaks on a connection; owns its pidfd."""

    __slots__ = ("_pidfd", "_poll", "caller", "is_connector")

    def __init__(self, pidfd: int, *, is_connector: bool) -> None:
        self._pidfd = pidfd
        self._poll = select.poll()
        self._poll.register(pidfd, select.POLLIN)
        self.is_connector = is_connector
        self.caller: Caller | None = None

    @property
    def alive(self) -> bool:
        """Whether it has not ended; a pidfd becomes readable when it has."""
        return not self._poll.poll(0)

    def close(self) -> None:
        """Give the pidfd back."""
        os.close(self._pidfd)


class Senders:
    """Everyone who speaks on one connection, judged once each.

    Args:
        connector: Who connected.
        identity: As whom the connector is served.
        judge_process: Says what a process is confined to; called while it is held.
        pidfd: The connector's, or `NO_PIDFD`; this object takes it over.
    """

    def __init__(
        self,
        connector: Credentials,
        identity: Identity,
        judge_process: Callable[[int, Standing], ConfinedAs | None],
        pidfd: int = NO_PIDFD,
    ) -> None:
        self._identity = identity
        self._judge = judge_process
        self._connected_at = time.clock_gettime(time.CLOCK_BOOTTIME)
        self._known: dict[bytes, _Sender] = {}
        if pidfd >= 0:
            raw = UCRED.pack(*connector)
            self._known[raw] = _Sender(pidfd, is_connector=True)

    def caller(self, credentials: bytes, pidfd: int = NO_PIDFD) -> Caller:
        """Return who sent a chunk.

        Args:
            credentials: As `receive` returned them.
            pidfd: Likewise; taken over.

        Raises:
            NotAllowedError: Nobody we may serve; the connection must close.
        """
        sender = self._known.get(credentials)
        if sender is not None and sender.alive:
            # Alive since we first held it, so the pid in *credentials* is its own.
            if pidfd >= 0:
                os.close(pidfd)
            return sender.caller or self._meet(credentials, sender)
        if sender is not None:
            self._known.pop(credentials).close()
        return self._meet(credentials, self._hold(credentials, pidfd))

    def close(self) -> None:
        """Give every pidfd back."""
        while self._known:
            self._known.popitem()[1].close()

    def _hold(self, raw: bytes, pidfd: int) -> _Sender:
        pidfd = self._find(raw) if pidfd == NO_PIDFD else pidfd
        if pidfd == ENDED:
            raise NotAllowedError(_SENDER_ENDED)
        while len(self._known) >= _MAX_SENDERS:
            self._known.pop(next(iter(self._known))).close()
        sender = self._known[raw] = _Sender(pidfd, is_connector=False)
        return sender

    def _meet(self, raw: bytes, sender: _Sender) -> Caller:
        pid, uid, gid = UCRED.unpack(raw)
        if uid != self._identity.uid:
            raise NotAllowedError(
                f"this connection was opened by uid {self._identity.uid}, and uid"
                f" {uid} speaks on it; connect yourself"
            )
        if pid <= 0:
            raise NotAllowedError(
                "the calling process is not visible from the daemon's pid namespace;"
                " call from inside it, or run the daemon outside"
            )
        try:
            standing = read_standing(pid)
            confined = self._judge(pid, standing)
        except OSError as error:
            why = f"the calling process cannot be examined: {error}"
            raise NotAllowedError(why if sender.alive else _SENDER_ENDED) from None
        if not sender.alive:
            # What was read may be about whoever got its number next.
            raise NotAllowedError(_SENDER_ENDED)
        identity = self._identity
        if not sender.is_connector:
            identity = replace(identity, gid=gid, groups=standing.groups)
        sender.caller = Caller(identity, pid, confined)
        return sender.caller

    def _find(self, raw: bytes) -> int:
        """Return a pidfd for a sender that came without one; `ENDED` if it has."""
        pid = UCRED.unpack(raw)[0]
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            return ENDED
        try:
            if started_at(pid) <= self._connected_at:
                return pidfd
        except OSError:
            os.close(pidfd)
            return ENDED
        os.close(pidfd)
        raise NotAllowedError(
            "the calling process is younger than the connection it speaks on, and this"
            " kernel (before 6.5) cannot prove who it is; connect yourself"
        )
