"""A terminal of its own for one command, made in its cell.

The spare makes it, so that it lies in the cell's own /dev/pts and belongs to the peer;
the daemon gets the master by the request socket and sees to bytes and size. The command
gets a controlling terminal: Ctrl-C, job control and SIGWINCH are the kernel's.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import termios

from . import wire

_SIZE = struct.Struct("HHHH")
"""struct winsize: rows, columns, and two fields nobody uses. Source: ioctl_tty(2)."""
_STDIO = (0, 1, 2)


def set_size(fd: int, rows: int, columns: int) -> None:
    """Set a terminal's size; its foreground processes get SIGWINCH.

    Source: TIOCSWINSZ(2const).
    """
    fcntl.ioctl(fd, termios.TIOCSWINSZ, _SIZE.pack(rows, columns, 0, 0))


def take_terminal(channel: socket.socket, rows: int, columns: int) -> None:
    """Make a terminal, send its master on *channel* and take the rest for one's own.

    The process is a session leader without a terminal, as spares are.

    Raises:
        OSError: There is none to be had.
    """
    master, slave = os.openpty()
    try:
        set_size(slave, rows, columns)
        socket.send_fds(channel, [wire.TERMINAL], [master])
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
        for fd in _STDIO:
            os.dup2(slave, fd)
    finally:
        os.close(master)
        os.close(slave)
