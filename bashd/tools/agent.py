"""Who calls the tools.

An `Agent` is one live connection of a caller to its session. Ownership of tasks
follows the session id, never the agent object: a second agent of the same session
may read the first one's tasks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

from bashd.core.model import Mode
from bashd.tools.session import LoggedSession, MemoryLog, SessionState

Inject = Callable[[str, dict[str, str]], None]
"""Gives the agent a durable text for its next request: the text and its source."""

Writable = Callable[[Mode], Awaitable[Sequence[str] | None]]
"""Places a command may write to under a mode; None where nobody knows. Asked only when
a write was denied."""


async def _unknown(_mode: Mode) -> None:
    return None


def discard(_text: str, _source: dict[str, str]) -> None:
    """Let a notice go: an `Inject` for callers that want none."""


class Agent:
    """A caller of the tools.

    Args:
        session_id: Id of its session, which is also its owner token; an empty string
            is a real one.
        cwd: The session's directory, absolute and filesystem-canonical; None leaves
            the executor's.
        session: The session's state; a log in memory by default.
        inject: Where completion notices go.
        writable: What to name when a write was denied.
    """

    def __init__(
        self,
        session_id: str,
        *,
        cwd: str | None = None,
        session: SessionState | None = None,
        inject: Inject = discard,
        writable: Writable = _unknown,
    ) -> None:
        self.session_id: Final = session_id
        self.cwd: Final = cwd
        self.session: Final = session or LoggedSession(MemoryLog())
        self.inject: Final = inject
        self.writable: Final = writable
        self.live = True
        """False once the caller has gone; notices are then dropped."""
        self._open_calls = 0

    @property
    def in_call(self) -> bool:
        """Whether a tool call of this agent is running: only then may anyone ask."""
        return self._open_calls > 0

    @contextmanager
    def call(self) -> Generator[None]:
        """Mark a tool call as running."""
        self._open_calls += 1
        try:
            yield
        finally:
            self._open_calls -= 1


class AgentRegistry(Protocol):
    """The live agents, whatever they are filed under."""

    def list(self) -> Sequence[Agent]:
        """Return every agent."""
        ...


class Agents:
    """Agents filed under keys of their own; looked up by session id."""

    def __init__(self) -> None:
        self._by_key: dict[str, Agent] = {}

    def add(self, key: str, agent: Agent) -> Callable[[], None]:
        """File *agent* under *key*; returns what takes it out again."""
        self._by_key[key] = agent

        def remove() -> None:
            if self._by_key.get(key) is agent:
                del self._by_key[key]

        return remove

    def list(self) -> Sequence[Agent]:
        """Return every agent."""
        return tuple(self._by_key.values())


def find_live(agents: AgentRegistry, session_id: str) -> Agent | None:
    """Return a live agent of that session, or None."""
    for agent in agents.list():
        if agent.live and agent.session_id == session_id:
            return agent
    return None
