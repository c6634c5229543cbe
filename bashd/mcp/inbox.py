"""Completion notices on their way to the client: two ways, each exactly once.

A notice is announced as it happens and waits here for the next tool result of the
session, where it becomes a content block of its own. How it is announced depends on
the era: a handshake client gets a log message, a 2026 client, where nothing may be sent
unasked, the update of a resource it listens to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import anyio
from mcp.server.subscriptions import InMemorySubscriptionBus, ResourceUpdated
from mcp_types import (
    LoggingLevel,
    LoggingMessageNotification,
    LoggingMessageNotificationParams,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

if TYPE_CHECKING:
    from mcp.server.session import ServerSession

TASKS_URI: Final = "bashd://tasks"
"""The resource that lists the session's background tasks."""
NOTICE_LEVEL: Final[LoggingLevel] = "info"
_LEVELS: Final[tuple[LoggingLevel, ...]] = (
    "debug",
    "info",
    "notice",
    "warning",
    "error",
    "critical",
    "alert",
    "emergency",
)


class Inbox:
    """The notices of one session that its client has not had yet."""

    def __init__(self) -> None:
        self.bus: Final = InMemorySubscriptionBus()
        self.least_level: LoggingLevel = "debug"
        """Log messages below this are not wanted (``logging/setLevel``)."""
        self._waiting: list[str] = []
        self._unannounced: list[str] = []
        self._news = anyio.Event()
        self._client: ServerSession | None = None

    def put(self, text: str, _source: dict[str, str]) -> None:
        """Take in a notice; this is the agent's inject function."""
        self._waiting.append(text)
        self._unannounced.append(text)
        self._news.set()

    def take(self) -> list[str]:
        """Return the notices that no result has carried yet, and forget them."""
        notices, self._waiting = self._waiting, []
        return notices

    def met(self, client: ServerSession) -> None:
        """Remember a session through which log messages reach the client."""
        self._client = client

    async def announce(self) -> None:
        """Announce notices as they come, until cancelled."""
        while True:
            await self._news.wait()
            self._news = anyio.Event()
            texts, self._unannounced = self._unannounced, []
            for text in texts:
                await self._announce(text)

    async def _announce(self, text: str) -> None:
        await self.bus.publish(ResourceUpdated(TASKS_URI))
        client = self._client
        if client is None or client.protocol_version in MODERN_PROTOCOL_VERSIONS:
            return
        if _LEVELS.index(NOTICE_LEVEL) < _LEVELS.index(self.least_level):
            return
        params = LoggingMessageNotificationParams(
            level=NOTICE_LEVEL, logger="bashd", data=text
        )
        await client.send_notification(LoggingMessageNotification(params=params))
