"""The sessions of a caller: the same six verbs, blocking and async."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import bashd.client.calls as calls  # noqa: PLR0402 - `from` would import ourselves

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bashd.client.calls import Call
    from bashd.client.connection import Connection
    from bashd.core.model import Mode
    from bashd.protocol.messages import SessionInfo


class Sessions:
    """The caller's sessions, blocking."""

    def __init__(
        self,
        ask: Callable[[Call[Any]], Any],
        environ: Mapping[str, str],
        *,
        far: bool = False,
    ) -> None:
        self._ask = ask
        self._environ = environ
        self._far = far

    def open(
        self,
        cwd: str | None = None,
        *,
        mode: Mode | str | None = None,
        policy: str | None = None,
    ) -> SessionInfo:
        """Open another session."""
        return self._ask(
            calls.open_session(
                cwd, environ=self._environ, mode=mode, policy=policy, far=self._far
            )
        )

    def attach(self, session_id: str) -> SessionInfo:
        """Give a session this client's environment."""
        return self._ask(calls.attach_session(session_id, environ=self._environ))

    def get(self, session_id: str) -> SessionInfo:
        """Return a session as it is now."""
        return self._ask(calls.get_session(session_id))

    def list(self) -> tuple[SessionInfo, ...]:
        """Return all sessions, oldest first."""
        return self._ask(calls.list_sessions())

    def set_mode(self, session_id: str, mode: Mode | str | None) -> SessionInfo:
        """Override a session's mode from its next call on; None removes that."""
        return self._ask(calls.set_session_mode(session_id, mode))

    def set_approval(self, session_id: str, approval: str) -> SessionInfo:
        """Say whether its calls may ask a person: ``ask`` or ``never``."""
        return self._ask(calls.set_approval(session_id, approval))

    def close(self, session_id: str) -> None:
        """End a session, its tasks and everything it keeps."""
        self._ask(calls.close_session(session_id))


class AsyncSessions:
    """The caller's sessions, for coroutines."""

    def __init__(
        self,
        connection: Connection,
        environ: Mapping[str, str],
        *,
        far: bool = False,
    ) -> None:
        self._ask = connection.ask
        self._environ = environ
        self._far = far

    async def open(
        self,
        cwd: str | None = None,
        *,
        mode: Mode | str | None = None,
        policy: str | None = None,
    ) -> SessionInfo:
        """Open another session."""
        return await self._ask(
            calls.open_session(
                cwd, environ=self._environ, mode=mode, policy=policy, far=self._far
            )
        )

    async def attach(self, session_id: str) -> SessionInfo:
        """Give a session this client's environment."""
        return await self._ask(calls.attach_session(session_id, environ=self._environ))

    async def get(self, session_id: str) -> SessionInfo:
        """Return a session as it is now."""
        return await self._ask(calls.get_session(session_id))

    async def list(self) -> tuple[SessionInfo, ...]:
        """Return all sessions, oldest first."""
        return await self._ask(calls.list_sessions())

    async def set_mode(self, session_id: str, mode: Mode | str | None) -> SessionInfo:
        """Override a session's mode from its next call on; None removes that."""
        return await self._ask(calls.set_session_mode(session_id, mode))

    async def set_approval(self, session_id: str, approval: str) -> SessionInfo:
        """Say whether its calls may ask a person: ``ask`` or ``never``."""
        return await self._ask(calls.set_approval(session_id, approval))

    async def record(self, session_id: str, event: Mapping[str, str]) -> None:
        """Append to the log what became of an approval asked for here."""
        await self._ask(calls.record_event(session_id, event))

    async def close(self, session_id: str) -> None:
        """End a session, its tasks and everything it keeps."""
        await self._ask(calls.close_session(session_id))
