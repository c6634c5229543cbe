"""Taking over what a daemon that died has left running.

Keepers dial the socket beside the main one. A keeper proves itself by its cell's
secret, which is in the session's record and in the keeper's own memory only, and by
the uid the kernel gives it. It then hands over each task it holds: the read ends of
its pipes (two for a stream that came fast), with every byte since the death still in
them, and its pidfd. Tasks nobody brings back within a moment are settled as lost; what
a keeper brings that no record knows (a foreground run of the dead daemon) is ended.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import os
import signal
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import trio

from bashd.daemon.cell import Cell, Spare
from bashd.daemon.cells import Home
from bashd.daemon.cgroups import CellGroups
from bashd.launcher import wire
from bashd.launcher.channel import receive

logger = logging.getLogger(__name__)

_HANDSHAKE_S = 10.0
_UCRED = struct.Struct("iII")


@dataclass(frozen=True, slots=True)
class KnownCell:
    """A cell of a record: who may bring it back, and how."""

    uid: int
    secret: str
    mode: str
    groups: CellGroups | None


@dataclass(frozen=True, slots=True)
class Brought:
    """One task that a keeper brought, with the cell it runs in."""

    cell_id: str
    serial: int
    cell: Cell
    spare: Spare


class AdoptedProcess:
    """A runner we are not the parent of, watched by its pidfd."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._pidfd = os.pidfd_open(pid)
        self.returncode: int | None = None

    async def wait(self) -> int:
        """Wait for its end; its status is its parent's to know."""
        if self.returncode is None:
            await trio.lowlevel.wait_readable(self._pidfd)
            self.returncode = 0
            os.close(self._pidfd)
        return self.returncode

    def close(self) -> None:
        """Let go of it, where nobody will wait for it."""
        os.close(self._pidfd)

    def kill(self) -> None:
        """Send SIGKILL."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)


class AdoptionSocket:
    """Listens for keepers; made before anybody can connect to the main socket.

    Args:
        path: Beside the main socket.
        group: Gid that may connect, for a root daemon with a group; None: owner only.
    """

    def __init__(self, path: Path, group: int | None) -> None:
        self.path = path
        with contextlib.suppress(FileNotFoundError):
            # The main socket's lock is ours, so whoever made this one is dead.
            path.unlink()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)  # noqa: FBT003 - as socket spells it
        self._socket.bind(str(path))
        if group is not None:
            os.chown(path, -1, group)
        path.chmod(0o600 if group is None else 0o660)
        self._socket.listen(256)
        self._folder_fd = os.open(
            path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
        )

    def home(self, orphan_timeout_s: float) -> Home:
        """Return what keepers are told about this place."""
        return Home(self._folder_fd, self.path.name, orphan_timeout_s)

    async def serve(
        self,
        find: Callable[[str], KnownCell | None],
        take: Callable[[str, Cell, list[Brought]], None],
    ) -> None:
        """Accept keepers until cancelled.

        Args:
            find: Returns the cell of a record.
            take: Gets each cell that came back, with its tasks; runs its pump.
        """
        async with trio.open_nursery() as nursery:
            while True:
                await trio.lowlevel.wait_readable(self._socket)
                try:
                    channel, _ = self._socket.accept()
                except OSError:
                    continue
                channel.setblocking(False)  # noqa: FBT003 - as socket spells it
                nursery.start_soon(_meet, channel, find, take)

    def close(self) -> None:
        """Stop listening and remove the socket."""
        self._socket.close()
        os.close(self._folder_fd)
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()


async def _meet(
    channel: socket.socket,
    find: Callable[[str], KnownCell | None],
    take: Callable[[str, Cell, list[Brought]], None],
) -> None:
    accepted = False
    try:
        with trio.move_on_after(_HANDSHAKE_S):
            accepted = await _shake_hands(channel, find, take)
    except (OSError, wire.WireError, UnicodeDecodeError) as error:
        logger.warning("a keeper was turned away: %s", error)
    finally:
        if not accepted:
            channel.close()


async def _shake_hands(
    channel: socket.socket,
    find: Callable[[str], KnownCell | None],
    take: Callable[[str, Cell, list[Brought]], None],
) -> bool:
    raw = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, _ = _UCRED.unpack(raw)
    await trio.lowlevel.wait_readable(channel)
    adopt = wire.Adopt.decode(*receive(channel, 0))
    known = find(adopt.cell_id)
    if (
        known is None
        or known.uid != uid
        or not hmac.compare_digest(known.secret, adopt.secret)
    ):
        channel.send(b"n")
        raise wire.WireError(f"uid {uid} brought a cell that is not known here")
    process = AdoptedProcess(pid)
    cell = Cell(
        known.mode, channel, process, cell_id=adopt.cell_id, groups=known.groups
    )
    # Nothing new starts in it; it ends when its last task has.
    cell.retired = True
    brought: list[Brought] = []
    try:
        channel.send(wire.Adopt.YES)
        while (spare := await _next_task(channel, cell)) is not None:
            if known.groups is not None:
                spare.group = known.groups.adopted(spare.serial)
            cell.adopt(spare)
            brought.append(Brought(adopt.cell_id, spare.serial, cell, spare))
    except BaseException:
        # It may come again, and again.
        for one in brought:
            one.spare.close()
        process.close()
        raise
    if known.groups is not None:
        # Foreground runs of the dead daemon, whose callers are gone.
        known.groups.kill(frozenset(one.serial for one in brought))
    take(adopt.cell_id, cell, brought)
    return True


async def _next_task(channel: socket.socket, cell: Cell) -> Spare | None:
    """Receive one task that a keeper hands over; None after the last."""
    await trio.lowlevel.wait_readable(channel)
    message, fds = receive(channel, wire.TaskHeld.MAX_FDS)
    try:
        if message == wire.TASKS_END and not fds:
            return None
        held = wire.TaskHeld.decode(message, fds)
        cell.holds_pipes = held.holds_pipes
        spare = Spare(cell, held.serial, fds[:3], None)
    except (OSError, wire.WireError):
        for fd in fds:
            os.close(fd)
        raise
    spare.second_pipes = dict(zip(held.second_pipes, fds[3:], strict=True))
    return spare
