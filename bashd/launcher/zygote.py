"""The keeper's end of the zygote: asks it for spares and replaces it when it is lost.

The zygote answers in the order it was asked. It may be stopped or killed by a command
of its own cell at any moment, while it starts too, or refused a fork by a limit on
processes; in all cases what was asked of it is asked again, at once or a moment later,
so the daemon gets every spare it ordered. What it is, and a spare: ``zygote.c``.
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
from typing import NamedTuple, NoReturn

from . import confine, kernel, wire
from .channel import receive
from .confine import Settings, StepError, step

_RETRY_S = 0.1
"""After a refused fork: a limit on processes is reached, and lasts while it lasts."""
_AT_ONCE = 16
"""Orders it is asked at the same time. More would fill its socket and that of its
answers, and each of us would wait for the other to read."""
_START_S = 5.0
"""It has everything loaded when it is forked, and is ready within milliseconds."""
_START_LOOK_MS = 20
"""Between looks whether one that starts was stopped: the loop does not run then."""
_SPARE_NAMES = ("bashd-spare", "bashd-zygote")
"""Names of a spare's process, the second for its first moments; exec gives it another,
and a zombie keeps it."""
_FIRST_FD = 3
"""Where ``zygote.c`` expects its channel; its ruleset, its configuration and the two
filters follow."""
_OUT_OF_THE_WAY_FD = 100


def is_spare(pid: int) -> bool:
    """Whether a process, dead or alive, has not become a command."""
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().rstrip("\n") in _SPARE_NAMES
    except OSError:
        return False


class Program(NamedTuple):
    """What the daemon has sent for the zygote; descriptors of sealed memfds."""

    zygote_fd: int
    """The executable."""
    filter_fd: int
    """Compiled seccomp filter that it puts on; empty for none."""
    spare_filter_fd: int
    """That each spare puts on beside it; likewise."""


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
        program: What it executes and installs.
        epoll: Where its channel is registered while there is one.
        deliver: Gets every new spare.
    """

    def __init__(
        self,
        settings: Settings,
        program: Program,
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
        self._pending: deque[Order] = deque()
        """To be asked when there is room, and not before `_again_at`."""
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
            become_zygote(theirs, self._settings, self._program)
        theirs.close()
        self.pid = pid
        try:
            self._wait_ready(ours)
        except (OSError, StepError):
            ours.close()
            raise
        ours.setblocking(False)  # noqa: FBT003 - as socket spells it
        self._channel = ours
        self._epoll.register(ours.fileno(), select.EPOLLIN)

    def _wait_ready(self, channel: socket.socket) -> None:
        poll = select.poll()
        poll.register(channel, select.POLLIN)
        until = time.monotonic() + _START_S
        while not poll.poll(_START_LOOK_MS):
            if time.monotonic() > until:
                os.kill(self.pid, signal.SIGKILL)
                raise StepError("zygote", f"it is not ready after {_START_S:g} s")
            if self._has_ended():
                # Its end of the channel may live on in a copy.
                break
        answer = channel.recv(wire.PACKET_BYTES, socket.MSG_DONTWAIT)
        if answer == b"!":
            return
        if answer[:1] == wire.FAILED:
            failed = wire.Failed.decode(answer, [])
            raise StepError(failed.step, failed.reason)
        raise StepError("zygote", "it ended before it was ready")

    def order(self, order: Order) -> None:
        """Have a spare made; it is delivered through `on_readable`."""
        self._pending.append(order)
        self.ask()

    def timeout_s(self) -> float | None:
        """Return in how many seconds `ask` has something to do; None: not by itself."""
        if not self._pending or len(self._asked) >= _AT_ONCE:
            return None
        return max(self._again_at - time.monotonic(), 0.0)

    def ask(self) -> None:
        """Ask for what is pending, as far as that can be done now."""
        while (
            self._pending
            and len(self._asked) < _AT_ONCE
            and time.monotonic() >= self._again_at
        ):
            order = self._pending[0]
            try:
                self._ask_one(order)
            except BlockingIOError:
                self._wait_a_while()
            except (OSError, StepError):
                # It has ended, perhaps while it started; or there is no process to be
                # had. The cell's tasks are not to suffer.
                self._lose()
                self._wait_a_while()
            else:
                self._pending.popleft()
                self._asked.append(order)

    def _ask_one(self, order: Order) -> None:
        if self._channel is None:
            self.start()
        assert self._channel is not None  # noqa: S101 - set by start
        fds = [order.group_fd] if order.group_fd >= 0 else []
        socket.send_fds(self._channel, [b"+"], fds)

    def _wait_a_while(self) -> None:
        self._again_at = time.monotonic() + _RETRY_S

    def on_readable(self) -> None:
        """Deliver a new spare, or notice that the zygote is gone."""
        assert self._channel is not None  # noqa: S101 - only polled while set
        try:
            message, fds = receive(self._channel, 4)
        except BlockingIOError:
            # The event was another's, whose descriptor had this number.
            return
        except OSError:
            message, fds = b"", []
        if not message:
            self._lose()
        else:
            self._on_answer(self._asked.popleft(), message, fds)
        self.ask()

    def _on_answer(self, order: Order, message: bytes, fds: list[int]) -> None:
        if order.withdrawn:
            for fd in fds:
                os.close(fd)
        elif fds:
            grouped, _, pid = message.partition(b" ")
            self._deliver(order, int(pid), grouped == b"1", fds)
        else:
            self._pending.append(order)
            self._wait_a_while()
            return
        order.close()

    def look_after(self) -> None:
        """Continue a zygote that was stopped, replace one that has ended.

        The kernel tells a parent of both. SIGSTOP no process can refuse. The end of
        the channel comes late or never where a spare still has a copy of it: one that
        was stopped before it could close what is not its own.
        """
        if self._channel is not None and self._has_ended():
            self._lose()
            self.ask()

    def _has_ended(self) -> bool:
        """Whether the process is gone; it is continued if it is only stopped."""
        try:
            seen = os.waitid(
                os.P_PID,
                self.pid,
                os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT,
            )
        except ChildProcessError:
            return True
        if seen is None:
            return False
        if seen.si_code != os.CLD_STOPPED:
            return True
        os.kill(self.pid, signal.SIGCONT)
        return False

    def _lose(self) -> None:
        """Forget a zygote that is gone; another one will do what it was asked.

        What it had made and nobody received ends by itself: its request socket closes.
        """
        if self._channel is not None:
            with contextlib.suppress(OSError):
                self._epoll.unregister(self._channel.fileno())
            self._channel.close()
            self._channel = None
        asked = [order for order in self._asked if not order.withdrawn]
        self._asked.clear()
        self._pending.extendleft(reversed(asked))

    def forget_orders(self) -> None:
        """Drop what was asked for: whoever asked is gone."""
        for order in (*self._asked, *self._pending):
            order.withdrawn = True
            order.close()
        self._pending.clear()


def become_zygote(
    channel: socket.socket, settings: Settings, program: Program
) -> NoReturn:
    """Put on the zygote's own layer and execute it: child of the keeper's fork.

    Every signal stays ignored until the program catches it.
    """
    try:
        rules = settings.rules()
        if settings.own_layer and rules is not None:
            with step("landlock-zygote"):
                layer = confine.build_ruleset(rules, scoped=True)
                layer.restrict_self(settings.log_flags)
                layer.close()
        inner = -1
        if rules is not None and rules.handled:
            # A layer that handles nothing is no layer; the scopes are the outer one's.
            with step("landlock-inner"):
                inner = confine.build_ruleset(rules, scoped=False).fd
        configuration = wire.zygote_configuration(
            has_layer=inner >= 0,
            log_flags=settings.log_flags,
            bash=os.fsencode(settings.bash),
            mounts=[
                (os.fsencode(path), dev, ino, read_only)
                for path, dev, ino, read_only in settings.mounts
            ],
        )
        with step("zygote"):
            _execute(channel, inner, configuration, program)
    except StepError as error:
        channel.send(wire.Failed(error.step, error.reason).encode())
    finally:
        os._exit(1)


def _execute(
    channel: socket.socket, ruleset_fd: int, configuration: bytes, program: Program
) -> None:
    config_fd = os.memfd_create("zygote", os.MFD_CLOEXEC)
    os.write(config_fd, configuration)
    filters = (program.filter_fd, program.spare_filter_fd)
    fds = (channel.fileno(), ruleset_fd, config_fd, *filters, program.zygote_fd)
    aside: list[int] = []
    for fd in fds:
        high = _OUT_OF_THE_WAY_FD + len(aside)
        aside.append(fd if fd < 0 else os.dup2(fd, high, inheritable=False))
    kernel.close_range(_FIRST_FD, _OUT_OF_THE_WAY_FD - 1)
    for number, fd in enumerate(aside[:-1], _FIRST_FD):
        if fd >= 0:
            os.dup2(fd, number)
    # Everything else closes by itself.
    os.execve(aside[-1], ["bashd-zygote"], {})  # noqa: S606 - it is our own
