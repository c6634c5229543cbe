"""What a session's log decides: its mode and its approval policy.

A session is event-sourced: the last ``bash/sandbox-mode`` is its mode, the last
``approval/policy`` its policy. Both are folded anew on every call, so a switch
made from outside is in force at once, survives a restart with the log, and cannot
reach another session. `SessionState` is what the tools ask; `LoggedSession` answers
from a log held here, a client of the daemon answers from the daemon's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, Protocol

from bashd.core.errors import ConfigError, InvalidParamsError
from bashd.core.model import Mode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Event = dict[str, object]
"""One line of a session's JSONL log; the key ``type`` says which."""

ApprovalPolicy = Literal["ask", "never"]

MODE_EVENT: Final = "bash/sandbox-mode"
POLICY_EVENT: Final = "approval/policy"
ASKED_EVENT: Final = "approval/asked"
DECIDED_EVENT: Final = "approval/decided"


class SessionLog(Protocol):
    """Append-only log of one session."""

    async def append(self, event: Event) -> None:
        """Add one event at the end."""
        ...

    async def events(self) -> Sequence[Event]:
        """Return every event, oldest first."""
        ...


class SessionState(Protocol):
    """What the tools need to know of a session, and the one thing they write."""

    async def mode_override(self) -> Mode | None:
        """Return the mode to stamp on a plain call; None leaves it to the executor."""
        ...

    async def effective_mode(self, default: Mode) -> Mode:
        """Return the mode a plain call runs in, given the executor's *default*."""
        ...

    async def approval_policy(self) -> ApprovalPolicy | None:
        """Return the session's own policy; None where it has none."""
        ...

    async def record(self, event: Event) -> None:
        """Append *event* to the session's log."""
        ...


class MemoryLog:
    """A session log in memory, for callers that keep no file."""

    def __init__(self, events: Sequence[Event] = ()) -> None:
        self._events: list[Event] = list(events)

    async def append(self, event: Event) -> None:
        """Add one event at the end."""
        self._events.append(event)

    async def events(self) -> Sequence[Event]:
        """Return every event, oldest first."""
        return tuple(self._events)


class LoggedSession:
    """A session whose state is folded from a log on every question."""

    def __init__(self, log: SessionLog) -> None:
        self._log = log

    async def mode_override(self) -> Mode | None:
        """Return the last mode in the log, or None."""
        return fold_mode(await self._log.events())

    async def effective_mode(self, default: Mode) -> Mode:
        """Return the last mode in the log, or *default*."""
        return await self.mode_override() or default

    async def approval_policy(self) -> ApprovalPolicy | None:
        """Return the last approval policy in the log, or None."""
        return fold_approval_policy(await self._log.events())

    async def record(self, event: Event) -> None:
        """Append *event* to the log."""
        await self._log.append(event)


def fold_mode(events: Sequence[Mapping[str, object]]) -> Mode | None:
    """Return the mode the last ``bash/sandbox-mode`` event set; None without one.

    An event whose mode is null takes the override back.

    Raises:
        ConfigError: A mode outside the vocabulary; a call must not guess what it was.
    """
    mode = _last(events, MODE_EVENT, "mode")
    if mode is None:
        return None
    try:
        return Mode(mode)
    except ValueError:
        raise ConfigError(
            f"the session log sets sandbox mode {mode!r}; expected one of "
            + ", ".join(str(known) for known in Mode)
        ) from None


def fold_approval_policy(
    events: Sequence[Mapping[str, object]],
) -> ApprovalPolicy | None:
    """Return the policy the last ``approval/policy`` event set; None without one.

    Raises:
        InvalidParamsError: A policy outside the vocabulary.
    """
    policy = _last(events, POLICY_EVENT, "policy")
    return None if policy is None else check_approval_policy(policy)


def check_approval_policy(policy: object) -> ApprovalPolicy:
    """Return *policy* if it is one.

    Raises:
        InvalidParamsError: It is not.
    """
    if policy not in ("ask", "never"):
        raise InvalidParamsError('approval policy must be one of "ask" or "never"')
    return policy


def mode_event(mode: Mode | None) -> Event:
    """Return the event that switches a session's mode, or takes the switch back."""
    return {"type": MODE_EVENT, "mode": None if mode is None else str(mode)}


def policy_event(policy: object) -> Event:
    """Return the event that sets a session's approval policy.

    Raises:
        InvalidParamsError: *policy* is not one.
    """
    return {"type": POLICY_EVENT, "policy": check_approval_policy(policy)}


def _last(events: Sequence[Mapping[str, object]], kind: str, key: str) -> object:
    for event in reversed(events):
        if event.get("type") == kind:
            return event.get(key)
    return None
