"""What one uid may take from the daemon through its connections, so that others can.

Three things grow with a caller's behaviour alone: connections, bytes received of
messages that are not complete, and bytes to be sent that are not read. Connections are
counted per uid and in all; held bytes per uid, whatever they are held for. Commands,
sessions and their output have limits of their own elsewhere.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass
from typing import Final

from bashd.core.errors import LimitError

_FDS_PER_CONNECTION: Final = 2
"""The socket and its sender's pidfd."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much connections may take."""

    connections: int = 2048
    """Of all callers together. A shell, an editor and an agent each hold one or two."""
    connections_per_uid: int = 512
    held_bytes_per_uid: int = 64 * 1024 * 1024
    """Four messages of the greatest size, or what 64 slow readers leave unread."""
    requests_in_flight: int = 256
    """Of one connection; each is a trio task and whatever its handler holds."""
    handshake_s: float = 10
    """Until ``initialize``. The client sends it together with its first request."""
    notify_bytes: int = 1024 * 1024
    """Unread bytes of one connection beyond which live output waits or is dropped."""
    unread_bytes: int = 4 * 1024 * 1024
    """Unread bytes of one connection beyond which no more of its requests are read."""
    flush_s: float = 2
    """For the last answers to be read once a connection is over."""


def affordable_connections(bounds: Bounds) -> int:
    """Return `Bounds.connections`, or less if descriptors are scarce here.

    Half of them stay for cells, pipes and output files.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return bounds.connections
    return min(bounds.connections, soft // 2 // _FDS_PER_CONNECTION)


@dataclass(slots=True)
class _Share:
    """What one uid takes now."""

    uid: int
    connections: int = 0
    held_bytes: int = 0


class Holding:
    """What one connection holds; its uid's share knows of it."""

    def __init__(self, share: _Share, limit_bytes: int) -> None:
        self._share = share
        self._limit_bytes = limit_bytes
        self._held_bytes = 0

    @property
    def uid(self) -> int:
        """Whose connection this is."""
        return self._share.uid

    def hold(self, count: int) -> None:
        """Count *count* more bytes as held; negative gives them back."""
        self._held_bytes += count
        self._share.held_bytes += count

    def check_room(self, count: int) -> None:
        """Say whether *count* more bytes may be held.

        Raises:
            LimitError: The uid holds too much already.
        """
        if self._share.held_bytes + count > self._limit_bytes:
            raise self._excess()

    def check(self) -> None:
        """Say whether this connection may go on.

        Raises:
            LimitError: The uid holds too much, and this connection is a reason.
        """
        # One that holds next to nothing is not closed for what others hold.
        if self._share.held_bytes > self._limit_bytes and (
            self._held_bytes > self._limit_bytes // 64
        ):
            raise self._excess()

    def _excess(self) -> LimitError:
        return LimitError(
            f"uid {self.uid} has more than {self._limit_bytes} bytes of unfinished"
            " requests and unread answers here; wait for answers and read them"
        )


class Quota:
    """Counts connections and what they hold."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._limit = affordable_connections(bounds)
        self._shares: dict[int, _Share] = {}
        self.connections = 0
        """Open now."""

    def admit(self, uid: int) -> Holding:
        """Count one more connection of *uid*.

        Raises:
            LimitError: It has too many, or there are too many in all. Root is not
                turned away for the latter: somebody must be able to look.
        """
        share = self._shares.get(uid) or _Share(uid)
        if share.connections >= self._bounds.connections_per_uid:
            raise LimitError(
                f"uid {uid} has {share.connections} connections, the most it may have;"
                " close some"
            )
        if self.connections >= self._limit and uid != 0:
            raise LimitError(
                f"the daemon has {self.connections} connections, the most it can"
                " serve; try again later"
            )
        self._shares[uid] = share
        share.connections += 1
        self.connections += 1
        return Holding(share, self._bounds.held_bytes_per_uid)

    def check(self, holding: Holding, limit: int) -> None:
        """Say whether the uid of *holding*, admitted already, has one too many.

        Raises:
            LimitError: It has more than *limit* connections.
        """
        share = self._shares[holding.uid]
        if share.connections > limit:
            raise LimitError(
                f"uid {share.uid} has {limit} connections already, the most it may"
                " have; close some"
            )

    def release(self, holding: Holding) -> None:
        """Count one connection less; a uid without any is forgotten."""
        share = self._shares[holding.uid]
        share.connections -= 1
        self.connections -= 1
        if share.connections == 0:
            del self._shares[share.uid]
