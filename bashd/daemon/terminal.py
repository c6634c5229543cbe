"""The daemon's end of a command's terminal: bytes both ways, its size, its end.

The master comes from the spare just before it becomes the command. What it prints is
the command's stdout (a terminal has no second stream); the client's keys go in as they
come. At the end of the client's input the terminal is told so (end of file, Ctrl-D).
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
import termios
from typing import TYPE_CHECKING, Final

import trio

from bashd.core.errors import InvalidParamsError
from bashd.daemon.cell import Spare
from bashd.launcher import wire
from bashd.launcher.channel import receive

if TYPE_CHECKING:
    from collections.abc import Callable

    from bashd.daemon.drain import Follower
    from bashd.daemon.output import StreamStore

_READ_BYTES: Final = 16 * 1024
"""A terminal gives at most 4 KiB at once; its buffer has room for some more."""
_AHEAD_BYTES: Final = 256 * 1024
"""How far the output may be ahead of its live reader before the terminal waits."""
_END_OF_FILE: Final = b"\x04"
_MOST: Final = 65535
"""Rows and columns are 16-bit numbers to the kernel."""
_SIZE: Final = struct.Struct("HHHH")
"""struct winsize: rows, columns, and two fields nobody uses. Source: ioctl_tty(2)."""


class Terminal:
    """The terminal of one call; its commands are tried with a fresh one each.

    Args:
        rows: Height, 1 to 65535.
        columns: Width, likewise.
        keys: What the client types.

    Raises:
        InvalidParamsError: A size makes no sense.
    """

    def __init__(
        self, rows: int, columns: int, keys: trio.abc.ReceiveChannel[bytes] | None
    ) -> None:
        self.rows, self.columns = _checked(rows), _checked(columns)
        self.keys = keys
        self._master = -1
        self._done = trio.Event()
        self._scope = trio.CancelScope()

    def resize(self, rows: int, columns: int) -> None:
        """Give the terminal, and one that comes later, another size.

        Raises:
            InvalidParamsError: It makes no sense.
        """
        self.rows, self.columns = _checked(rows), _checked(columns)
        if self._master >= 0:
            _set_size(self._master, self.rows, self.columns)

    async def serve(
        self,
        spare: Spare,
        store: StreamStore,
        on_progress: Callable[[], None] | None,
        follower: Follower | None,
    ) -> None:
        """Move bytes until the command and all that holds the terminal has let go."""
        self._done, self._scope = trio.Event(), trio.CancelScope()
        try:
            with self._scope:
                self._master = await _receive_master(spare)
                if self._master < 0:
                    return
                # It may have been resized on the way.
                _set_size(self._master, self.rows, self.columns)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._type)
                    await self._read(store, on_progress, follower)
                    nursery.cancel_scope.cancel()
        finally:
            master, self._master = self._master, -1
            if master >= 0:
                # Whoever still has it open gets SIGHUP.
                os.close(master)
            self._done.set()

    async def finish(self, grace_s: float) -> None:
        """Wait for the end of the output, but no longer than *grace_s* seconds."""
        with trio.move_on_after(grace_s):
            await self._done.wait()
        self._scope.cancel()
        with trio.CancelScope(shield=True):
            await self._done.wait()

    async def _read(
        self,
        store: StreamStore,
        on_progress: Callable[[], None] | None,
        follower: Follower | None,
    ) -> None:
        while True:
            await trio.lowlevel.wait_readable(self._master)
            try:
                data = os.read(self._master, _READ_BYTES)
            except BlockingIOError:
                continue
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                return  # nobody has the other end open
            store.write(data)
            if on_progress is not None:
                on_progress()
            while (
                follower is not None
                and not follower.gone
                and store.total - follower.offset > _AHEAD_BYTES
            ):
                await follower.wait_moved()

    async def _type(self) -> None:
        if self.keys is None:
            return
        async for piece in self.keys:
            await self._write(piece)
        await self._write(_END_OF_FILE)

    async def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            await trio.lowlevel.wait_writable(self._master)
            try:
                view = view[os.write(self._master, view) :]
            except BlockingIOError:
                continue
            except OSError:
                return  # the command has ended; its status is what counts


async def _receive_master(spare: Spare) -> int:
    """Wait for the master; -1 if the spare failed or ended before it had one."""
    request = spare.request
    while request is not None:
        await trio.lowlevel.wait_readable(request)
        try:
            # Only looked at: what a failed spare says is for `Spare.outcome`.
            if request.recv(1, socket.MSG_PEEK) != wire.TERMINAL:
                return -1
            _, fds = receive(request, 1)
        except BlockingIOError:
            continue
        except (OSError, wire.WireError):
            return -1
        for extra in fds[1:]:
            os.close(extra)
        if not fds:
            return -1
        os.set_blocking(fds[0], False)
        return fds[0]
    return -1


def _checked(value: int) -> int:
    if not 1 <= value <= _MOST:
        raise InvalidParamsError(f"a terminal has 1 to {_MOST} rows and columns")
    return value


def _set_size(fd: int, rows: int, columns: int) -> None:
    """Set a terminal's size; its foreground processes get SIGWINCH.

    Source: TIOCSWINSZ(2const).
    """
    fcntl.ioctl(fd, termios.TIOCSWINSZ, _SIZE.pack(rows, columns, 0, 0))
