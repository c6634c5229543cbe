"""Completion notices on their way to the client: two ways, each exactly once.

A notice is announced as it happens, and waits for the next tool result of the session,
where it becomes a content block of its own. It waits in the daemon, so that neither a
killed client nor a second one of the same session loses or doubles it. How it is
announced depends on the era: a handshake client gets a log message, a 2026 client,
where nothing may be sent unasked, the update of a resource it listens to.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, Protocol

import anyio
import anyio.lowlevel
from mcp.server.subscriptions import InMemorySubscriptionBus, ResourceUpdated
from mcp_types import (
    LoggingLevel,
    LoggingMessageNotification,
    LoggingMessageNotificationParams,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from bashd.core.errors import BashdError
from bashd.tools.notices import notice_text

if TYPE_CHECKING:
    from mcp.server.session import ServerSession

    from bashd.core.model import TaskInfo

_log = logging.getLogger(__name__)

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


_TAKE_S: Final = 5.0
"""A result does not wait longer for what is to be said after it."""


class NoticeQueue(Protocol):
    """Where notices are kept for a session, so that they outlive this process."""

    async def take_notices(self) -> list[TaskInfo]:
        """Return the finished tasks whose notice nobody has taken yet; each once.

        Raises:
            BashdError: They cannot be had now; they are kept.
        """
        ...


class Inbox:
    """The notices of one session that its client has not had yet.

    Args:
        queue: Keeps the notices for results; without one they are kept here.
    """

    def __init__(self, queue: NoticeQueue | None = None) -> None:
        self.bus: Final = InMemorySubscriptionBus()
        self.least_level: LoggingLevel = "debug"
        """Log messages below this are not wanted (``logging/setLevel``)."""
        self._queue = queue
        self._waiting: list[str] = []
        self._unannounced: list[str] = []
        self._news = anyio.Event()
        self._client: ServerSession | None = None
        self._met = anyio.Event()

    def put(self, text: str, _source: dict[str, str]) -> None:
        """Take in a notice; this is the agent's inject function."""
        if self._queue is None:
            self._waiting.append(text)
        self._unannounced.append(text)
        self._news.set()

    async def take(self) -> list[str]:
        """Return the notices that no result has carried yet, and forget them."""
        if self._queue is not None:
            # Shielded, and kept here first: what the queue gives is gone from there.
            with anyio.move_on_after(_TAKE_S, shield=True):
                self._waiting += await _taken(self._queue)
            await anyio.lowlevel.checkpoint_if_cancelled()
        notices, self._waiting = self._waiting, []
        return notices

    def met(self, client: ServerSession) -> None:
        """Remember a session through which log messages reach the client."""
        self._client = client
        self._met.set()

    async def announce(self) -> None:
        """Announce notices as they come, until cancelled."""
        # What happened while no client was there is news for the first one.
        await self._met.wait()
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


async def _taken(queue: NoticeQueue) -> list[str]:
    try:
        return [notice_text(task) for task in await queue.take_notices()]
    except BashdError as error:
        # The result must not suffer; the notice goes with a later one.
        _log.warning("notices wait: %s", error.message)
        return []
