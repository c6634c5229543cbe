"""Accepts connections: who may, how many, and when nobody is left.

Who connects is asked of the kernel and decided before a byte of theirs is read. A
connection is one trio task; whatever goes wrong in it ends in it.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
from typing import TYPE_CHECKING, Final

import trio

from bashd.core.errors import BashdError, LimitError
from bashd.daemon.access import check_connector
from bashd.daemon.answers import error_line
from bashd.daemon.api import Connection
from bashd.daemon.credentials import (
    Credentials,
    Standing,
    ask_for_credentials,
    connector_of,
    connector_pidfd,
    groups_of,
)
from bashd.daemon.peer import Exemptions, Senders, judge
from bashd.daemon.people import People
from bashd.daemon.quota import Bounds, Holding, Quota

if TYPE_CHECKING:
    from collections.abc import Callable

    from bashd.daemon.access import ConfinedAs
    from bashd.daemon.call import Dispatch
    from bashd.daemon.identity import Identity

logger = logging.getLogger(__name__)

_OUT_OF_RESOURCES: Final = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
)
_ACCEPTS_PER_TURN: Final = 64
"""Connections let in before those that are open get their turn."""
_MOST_LEAVING: Final = 64
"""Refused connections that are seen off at the same time; the others are just cut."""
_SEE_OFF_S: Final = 1.0
_SEE_OFF_BYTES: Final = 4096
_RETRY_S: Final = 0.2
"""Pause when accept() has no descriptor to give; somebody's end frees one."""


class Server:
    """Serves everyone who connects to one listening socket.

    Args:
        listener: Listening and non-blocking; not taken over.
        dispatch: The service.
        allow_root: ``[daemon] allow_root``.
        socket_gid: The group a root daemon serves; None: root only.
        exemptions: ``[daemon] confined_callers``.
        bounds: What connections may take.
        connections_of: How many of them one user may have; None: as in *bounds*.
    """

    def __init__(
        self,
        listener: socket.socket,
        dispatch: Dispatch,
        *,
        allow_root: bool = True,
        socket_gid: int | None = None,
        exemptions: Exemptions | None = None,
        bounds: Bounds | None = None,
        connections_of: Callable[[Identity], int] | None = None,
    ) -> None:
        self._listener = listener
        self._dispatch = dispatch
        self.allow_root = allow_root
        """As the argument; may be changed at any time, for those who connect then."""
        self._socket_gid = socket_gid
        self.exemptions = exemptions or Exemptions((), frozenset())
        """Likewise, for processes that are heard for the first time then."""
        self._bounds = bounds or Bounds()
        self._quota = Quota(self._bounds)
        self._connections_of = connections_of
        self._people = People()
        self._open: set[Connection] = set()
        self._accepted = 0
        self._leaving = 0
        self._changed = trio.Event()

    @property
    def connections(self) -> int:
        """How many are open."""
        return self._quota.connections

    async def wait_changed(self) -> None:
        """Wait until a connection opens or ends."""
        await self._changed.wait()

    async def accept(self, nursery: trio.Nursery) -> None:
        """Serve whoever connects, in *nursery*, until cancelled."""
        while True:
            await trio.lowlevel.wait_readable(self._listener)
            try:
                self.accept_pending(nursery)
            except OSError as error:
                if error.errno not in _OUT_OF_RESOURCES:
                    raise
                logger.warning("cannot accept a connection: %s", error)
                await trio.sleep(_RETRY_S)

    def accept_pending(self, nursery: trio.Nursery) -> int:
        """Accept what waits now; returns how many were let in.

        Raises:
            OSError: The listener failed, or the process is out of descriptors.
        """
        admitted = 0
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return admitted
            except ConnectionError:
                continue  # it left before it was let in
            admitted += self._let_in(sock, nursery)
        return admitted

    async def finish(self, reason: str) -> None:
        """Answer what is open, and give clients a moment to read it."""
        with trio.move_on_after(self._bounds.flush_s):
            async with trio.open_nursery() as nursery:
                for connection in self._open:
                    nursery.start_soon(connection.finish, reason)

    def _let_in(self, sock: socket.socket, nursery: trio.Nursery) -> bool:
        sock.settimeout(0)
        try:
            connector = connector_of(sock)
            groups = groups_of(sock)
            check_connector(
                connector.uid,
                frozenset((connector.gid, *groups)),
                own_uid=os.geteuid(),
                allow_root=self.allow_root,
                socket_gid=self._socket_gid,
            )
            holding = self._quota.admit(connector.uid)
        except BashdError as error:
            self._turn_away(sock, error, nursery)
            return False
        except OSError as error:
            logger.warning("a connection was dropped: %s", error)
            sock.close()
            return False
        self._signal()
        nursery.start_soon(self._serve, sock, connector, groups, holding)
        return True

    async def _serve(
        self,
        sock: socket.socket,
        connector: Credentials,
        groups: tuple[int, ...],
        holding: Holding,
    ) -> None:
        self._accepted += 1
        number = self._accepted
        senders: Senders | None = None
        try:
            ask_for_credentials(sock)
            pidfd = connector_pidfd(sock)
            identity = await self._people.identity(connector.uid, connector.gid, groups)
            if self._connections_of is not None:
                try:
                    self._quota.check(holding, self._connections_of(identity))
                except LimitError as error:
                    _say_why(sock, error)
                    await _wait_until_read(sock)
                    return
            senders = Senders(connector, identity, self._judge, pidfd)
            connection = Connection(
                sock,
                number=number,
                senders=senders,
                dispatch=self._dispatch,
                holding=holding,
                bounds=self._bounds,
            )
            self._open.add(connection)
            try:
                await connection.serve()
            finally:
                self._open.discard(connection)
        except Exception:
            # A bug, or a handler's: it costs this connection and no other.
            logger.exception("connection %d of uid %d failed", number, holding.uid)
        finally:
            if senders is not None:
                senders.close()
            trio.lowlevel.notify_closing(sock)
            sock.close()
            self._quota.release(holding)
            self._signal()

    def _turn_away(
        self, sock: socket.socket, error: BashdError, nursery: trio.Nursery
    ) -> None:
        logger.info("a connection was refused: %s", error.message)
        _say_why(sock, error)
        if self._leaving < _MOST_LEAVING:
            self._leaving += 1
            nursery.start_soon(self._see_off, sock)
        else:
            sock.close()

    async def _see_off(self, sock: socket.socket) -> None:
        try:
            await _wait_until_read(sock)
        finally:
            self._leaving -= 1
            trio.lowlevel.notify_closing(sock)
            sock.close()

    def _judge(self, pid: int, standing: Standing) -> ConfinedAs | None:
        return judge(pid, standing, self._dispatch.cell_of, self.exemptions)

    def _signal(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


def _say_why(sock: socket.socket, error: BashdError) -> None:
    with contextlib.suppress(OSError):  # it may not have waited
        sock.send(error_line(None, error), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        sock.shutdown(socket.SHUT_WR)


async def _wait_until_read(sock: socket.socket) -> None:
    """Let a client that was refused send its first request, and read why.

    Were the socket closed at once, its write would fail, and it would not look.
    """
    with trio.move_on_after(_SEE_OFF_S):
        await trio.lowlevel.wait_readable(sock)
        with contextlib.suppress(OSError):
            while sock.recv(_SEE_OFF_BYTES):
                await trio.lowlevel.wait_readable(sock)
