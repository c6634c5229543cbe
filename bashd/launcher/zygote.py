"""The keeper's end of the zygote: asks it for spares and replaces it when it is lost.

The zygote answers in the order it was asked. It may be killed by a command of its own
cell, or refused a fork by a limit on processes; in both cases what was asked of it is
asked again, at once or a moment later, so the daemon gets every spare it ordered.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from collections import deque
from collections.abc import Callable

from . import wire
from .confine import Settings, StepError
from .spare import receive, run_zygote

_RETRY_S = 0.1
"""After a refused fork: a limit on processes is reached, and lasts while it lasts."""


class Order:
    """One spare that the daemon has asked for."""

    __slots__ = ("group_fd", "serial", "withdrawn")

    def __init__(self, serial: int, group_fd: int) -> None:
        self.serial = serial
        """The daemon's name for it."""
        self.group_fd = group_fd
        """Folder of the cgroup it is to be born in; -1: none. Owned."""
        self.withdrawn = False
        """Whoever asked is gone; the spare will be, too, when it sees that."""

    def close(self) -> None:
        """Close the folder."""
        if self.group_fd >= 0:
            os.close(self.group_fd)
            self.group_fd = -1


Delivery = Callable[[Order, int, bool, list[int]], None]
"""Takes an order, the spare's pid, whether it is in its cgroup, and its descriptors:
request socket, stdout, stderr, pidfd."""


class Zygote:
    """See the module docstring.

    Args:
        settings: The cell's.
        program: Compiled seccomp filter.
        epoll: Where its channel is registered while there is one.
        deliver: Gets every new spare.
    """

    def __init__(
        self,
        settings: Settings,
        program: bytes,
        epoll: select.epoll,
        deliver: Delivery,
    ) -> None:
        self.pid = 0
        self._settings = settings
        self._program = program
        self._epoll = epoll
        self._deliver = deliver
        self._channel: socket.socket | None = None
        self._asked: deque[Order] = deque()
        self._refused: deque[Order] = deque()
        self._again_at = 0.0

    @property
    def fd(self) -> int:
        """Its channel's descriptor; -1 without a zygote."""
        return -1 if self._channel is None else self._channel.fileno()

    @property
    def may_have_spare(self) -> bool:
        """Whether a spare may exist that was not delivered yet."""
        return bool(self._asked)

    def start(self) -> None:
        """Fork the zygote and wait until it says that its layers are on.

        Raises:
            StepError: One of them could not be put on.
            OSError: There is no process to be had.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            pid = os.fork()
        except OSError:
            ours.close()
            theirs.close()
            raise
        if pid == 0:
            run_zygote(theirs, self._settings, self._program)
        theirs.close()
        self.pid = pid
        answer = ours.recv(wire.PACKET_BYTES)
        if answer != b"!":
            ours.close()
            if answer[:1] == wire.FAILED:
                failed = wire.Failed.decode(answer, [])
                raise StepError(failed.step, failed.reason)
            raise StepError("zygote", "it ended before it was ready")
        self._channel = ours
        self._epoll.register(ours.fileno(), select.EPOLLIN)

    def order(self, order: Order) -> None:
        """Ask for a spare; it is delivered through `on_readable`."""
        try:
            if self._channel is None:
                self.start()
            assert self._channel is not None  # noqa: S101 - set by start
            fds = [order.group_fd] if order.group_fd >= 0 else []
            socket.send_fds(self._channel, [b"+"], fds)
        except OSError:
            self._refuse(order)
            self._lose()
            return
        self._asked.append(order)

    def timeout_s(self) -> float | None:
        """Return in how many seconds `retry` has something to do; None: nothing."""
        if not self._refused:
            return None
        return max(self._again_at - time.monotonic(), 0.0)

    def retry(self) -> None:
        """Ask again for what was refused a while ago."""
        if not self._refused or time.monotonic() < self._again_at:
            return
        orders, self._refused = self._refused, deque()
        for order in orders:
            self.order(order)

    def _refuse(self, order: Order) -> None:
        self._refused.append(order)
        self._again_at = time.monotonic() + _RETRY_S

    def on_readable(self) -> None:
        """Deliver a new spare, or notice that the zygote is gone."""
        assert self._channel is not None  # noqa: S101 - only polled while set
        try:
            message, fds = receive(self._channel, 4)
        except OSError:
            message, fds = b"", []
        if not message:
            orders, self._asked = self._asked, deque()
            self._lose()
            for order in orders:
                self.order(order)
            return
        order = self._asked.popleft()
        if not fds:
            if not order.withdrawn:
                self._refuse(order)
            return
        if order.withdrawn:
            for fd in fds:
                os.close(fd)
        else:
            grouped, _, pid = message.partition(b" ")
            self._deliver(order, int(pid), grouped == b"1", fds)
        order.close()

    def continue_if_stopped(self) -> None:
        """Undo the SIGSTOP of a command of this cell, which no process can refuse.

        The kernel tells the parent of a stop as it does of an end.
        """
        if self._channel is None:
            return
        with contextlib.suppress(ChildProcessError, ProcessLookupError):
            if os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG):
                os.kill(self.pid, signal.SIGCONT)

    def _lose(self) -> None:
        """Forget a zygote that was ended by a command of this cell."""
        if self._channel is not None:
            with contextlib.suppress(OSError):
                self._epoll.unregister(self._channel.fileno())
            self._channel.close()
            self._channel = None
        while self._asked:
            self._refuse(self._asked.popleft())

    def forget_orders(self) -> None:
        """Drop what was asked for: whoever asked is gone."""
        for order in (*self._asked, *self._refused):
            order.withdrawn = True
            order.close()
        self._refused.clear()
