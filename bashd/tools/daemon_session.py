"""The session of a daemon as the tools see it: its mode, its policy, its rules.

Everything is asked anew for each call, so what somebody changes from outside counts
from the next one on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from bashd.tools.agent import Agent, Inject, discard
from bashd.tools.hooks import judge_command, strictest
from bashd.tools.session import ApprovalPolicy, Event, check_approval_policy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bashd.core.model import Mode
    from bashd.protocol.messages import SessionInfo
    from bashd.tools.hooks import Hook, HookAnswer, HookRequest


class SessionClient(Protocol):
    """What this needs of a connection; a client of the library is one."""

    @property
    def session(self) -> SessionInfo:
        """The session as it was when the connection was made."""
        ...

    async def session_now(self) -> SessionInfo:
        """Return the session as it is now."""
        ...

    async def record(self, event: Mapping[str, object]) -> None:
        """Append an approval's event to the session's log."""
        ...


class DaemonSession:
    """Mode and policy as the daemon has them now; a `SessionState`."""

    def __init__(self, client: SessionClient) -> None:
        self._client = client

    async def mode_override(self) -> Mode | None:
        """Return None: a call without a mode gets the session's from the daemon."""
        return None

    async def effective_mode(self, default: Mode) -> Mode:
        """Return the mode a plain call runs in; *default* is the daemon's affair."""
        return (await self._client.session_now()).mode

    async def approval_policy(self) -> ApprovalPolicy | None:
        """Return the session's policy."""
        return check_approval_policy((await self._client.session_now()).approval)

    async def record(self, event: Event) -> None:
        """Append *event* to the session's log."""
        await self._client.record(event)


def policy_hook(client: SessionClient) -> Hook:
    """Return a hook that applies the command rules of the session's policy."""

    async def hook(request: HookRequest) -> HookAnswer:
        lists = (await client.session_now()).command_rules
        return strictest([judge_command(rules, request.command) for rules in lists])

    return hook


def daemon_agent(client: SessionClient, inject: Inject = discard) -> Agent:
    """Return the agent of the client's session."""
    info = client.session

    async def writable(mode: Mode) -> Sequence[str] | None:
        now = await client.session_now()
        # The daemon tells the places of the session's own mode, not of a grant's.
        return now.writable if now.mode is mode else None

    return Agent(
        info.session_id,
        cwd=info.cwd,
        session=DaemonSession(client),
        inject=inject,
        writable=writable,
    )
