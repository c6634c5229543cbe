"""The keeper: first process of a cell; see the package docstring for the whole.

One epoll loop, no threads. It holds what must outlive everything else in the cell:
the children's pids (pinned by not reaping), their exit statuses and copies of the
read ends of their pipes.
"""

from __future__ import annotations

import contextlib
import marshal
import math
import os
import select
import signal
import socket
import sys
import time
from typing import NoReturn

# Imported before privileges are given up.
from landlock import plumbing  # noqa: F401  # pyright: ignore[reportUnusedImport]

from . import confine, home, kernel, tree, wire
from .channel import AT_ONCE, read_payload, receive
from .confine import Settings, StepError, prctl, step
from .zygote import Order, Program, Zygote, is_spare

_END_DEADLINE_S = 5.0
"""How long the end of a cell waits for processes outside a pid namespace."""
_MESSAGES_A_TURN = 300
"""About what the socket holds."""
_REAP_S = 0.05
"""How long orphans may stay zombies: one look at all children serves many of them."""
_PIPES = 2
_CONFIG_FDS = 4
_SIGNALS = [number for number in range(1, 65) if number not in (9, 19, 32, 33)]
"""All but SIGKILL and SIGSTOP, which none can change, and glibc's two own."""
_CAPABILITY_LINES = ("CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:")


def _ignore_signals() -> None:
    """Ignore every signal that can be ignored, except SIGCHLD's default."""
    for number in _SIGNALS:
        if number != signal.SIGCHLD:
            signal.signal(number, signal.SIG_IGN)


class Child:
    """A spare or the command it became."""

    __slots__ = ("exited", "fds", "is_task", "pid", "pidfd", "serial")

    def __init__(self, serial: int, pid: int, pidfd: int, fds: list[int]) -> None:
        self.serial = serial
        self.pid = pid
        self.pidfd = pidfd
        self.fds = fds
        """The keeper's copies of the read ends of stdout and stderr."""
        self.is_task = False
        """The daemon said so: it is to survive the daemon's death."""
        self.exited = False

    def drop_pipes(self) -> None:
        """Close the copies, so that a writer can meet EPIPE."""
        while self.fds:
            os.close(self.fds.pop())


class Keeper:
    """State of the loop."""

    def __init__(
        self,
        control: socket.socket,
        settings: Settings,
        program: Program,
        home_fd: int,
    ) -> None:
        self.control = control
        self.home_fd = home_fd
        self.settings = settings
        self.children: dict[int, Child] = {}
        self.by_pid: dict[int, Child] = {}
        self.epoll = select.epoll()
        self.zygote = Zygote(settings, program, self.epoll, self.deliver)
        self.handlers: dict[int, Child] = {}
        """By pidfd: children whose end has not been reported."""
        self.doomed: dict[int, bytes] = {}
        """Serials of children whose trees are to end, and what marks those who hide."""
        self.done: list[Child] = []
        """Whose end the daemon has taken note of; forgotten after the kills."""
        self.ended = False
        self.reap_at = math.inf
        """When orphans are to be reaped: one may have ended."""
        self.is_init = os.getpid() == 1
        scoped = bool(settings.landlock and settings.landlock["scoped"] & 2)
        self.may_signal_all = settings.confined and (self.is_init or scoped)

    # -- loop -----------------------------------------------------------------

    def run(self, wakeup_fd: int) -> None:
        """Serve until END or end of file on the control socket."""
        self.epoll.register(self.control.fileno(), select.EPOLLIN)
        self.epoll.register(wakeup_fd, select.EPOLLIN)
        pidfds = self.handlers
        while not self.ended:
            events = self.epoll.poll(self.timeout_s())
            self.zygote.ask()
            # Exits first: somebody waits for them, and orphans can wait.
            for fd, _ in events:
                child = pidfds.get(fd)
                if child is not None:
                    self.report_exit(child)
            for fd, _ in events:
                if fd not in pidfds:
                    self.on_readable(fd, wakeup_fd)

            if time.monotonic() >= self.reap_at:
                self.reap_orphans()

    def timeout_s(self) -> float | None:
        """Return in how many seconds there is something to do; None: not by itself."""
        times = [] if self.reap_at == math.inf else [self.reap_at - time.monotonic()]
        zygote_s = self.zygote.timeout_s()
        if zygote_s is not None:
            times.append(zygote_s)
        return max(min(times), 0.0) if times else None

    def on_readable(self, fd: int, wakeup_fd: int) -> None:
        """Act on what one of the loop's own descriptors brings."""
        if fd == self.control.fileno():
            self.on_control()
        elif fd == wakeup_fd:
            with contextlib.suppress(BlockingIOError):
                os.read(wakeup_fd, 4096)
            self.zygote.look_after()
            self.reap_at = min(self.reap_at, time.monotonic() + _REAP_S)
        elif fd == self.zygote.fd:
            self.zygote.on_readable()

    def on_control(self) -> None:
        """Obey what the daemon has said; anything malformed ends the cell.

        Trees that are to end are ended together where nothing else was said in between:
        a look at the process table takes as long for a hundred as for one.
        """
        for _ in range(_MESSAGES_A_TURN):
            if not self.obey_one():
                break
        self.finish_kills()

    def obey_one(self) -> bool:
        """Obey one message; False when there is none, or it was this socket's last."""
        try:
            message, fds = receive(self.control, 2, AT_ONCE)
        except BlockingIOError:
            return False
        except ConnectionError:
            message, fds = b"", []
        tag = message[:1]
        if tag == wire.FORK:
            self.zygote.order(Order(*wire.fork_order(message, fds)))
            return True
        for fd in fds:
            os.close(fd)
        if not tag:
            self.finish_kills()
            self.on_daemon_lost()
        elif tag == wire.END:
            self.ended = True
        else:
            self.on_child_message(tag, message)
            return True
        return False

    def on_daemon_lost(self) -> None:
        """Dial home and go on with the running tasks, or end."""
        self.epoll.unregister(self.control.fileno())
        self.control.close()
        self.zygote.forget_orders()
        self.forget_spares()
        settings = self.settings.home
        if settings is None or not self.children:
            self.ended = True
            return
        control = home.dial(self.home_fd, settings)
        if control is None:
            self.ended = True
            return
        self.control = control
        self.epoll.register(control.fileno(), select.EPOLLIN)
        for child in list(self.children.values()):
            held = wire.TaskHeld(child.serial, child.pid).encode()
            self.send(held, [*child.fds, child.pidfd])
        self.send(wire.TASKS_END)
        for child in list(self.children.values()):
            child.exited = False
            if child.pidfd not in self.handlers:
                # An exit that was reported to the dead daemon is reported again.
                self.handlers[child.pidfd] = child
                self.epoll.register(child.pidfd, select.EPOLLIN)

    def forget_spares(self) -> None:
        """End the children that nobody will ask for.

        Spares; foreground runs, whose callers went with the daemon; and a task whose
        pipes the daemon had dropped, which holds nothing to hand over.
        """
        children = list(self.children.values())
        kept = [c for c in children if c.is_task and len(c.fds) == _PIPES]
        dropped = [child for child in children if child not in kept]
        self.kill_all(dropped)
        for child in dropped:
            with contextlib.suppress(OSError):
                self.epoll.unregister(child.pidfd)
            self.handlers.pop(child.pidfd, None)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child.pid, 0)
            self.release(child)

    def on_child_message(self, tag: bytes, message: bytes) -> None:
        """Handle the messages that name a child by its serial."""
        fields = wire.unpack(message)
        child = self.children.get(wire.number(fields[0]))
        if child is None:
            return
        if tag == wire.KILL:
            self.doomed[child.serial] = fields[1]
        elif tag == wire.ACK:
            # A kill that was asked for before needs its pid.
            self.done.append(child)
        else:
            self.finish_kills()
            self.on_life_message(tag, child, fields)

    def on_life_message(self, tag: bytes, child: Child, fields: list[bytes]) -> None:
        """Handle the messages about a child that lives on."""
        if tag == wire.SIGNAL:
            self.signal_group(child, wire.number(fields[1]))
        elif tag == wire.TASK:
            child.is_task = True
        elif tag == wire.DROP:
            child.drop_pipes()

    def finish_kills(self) -> None:
        """End the trees that were named, then forget the children that are done."""
        doomed, self.doomed = self.doomed, {}
        done, self.done = self.done, []
        if doomed:
            markers = frozenset(marker for marker in doomed.values() if marker)
            self.kill_all([self.children[serial] for serial in doomed], markers)
        for child in done:
            if child.serial in self.children:
                self.forget(child)

    def deliver(
        self,
        order: Order,
        pid: int,
        grouped: bool,  # noqa: FBT001 - as the zygote reports it
        fds: list[int],
    ) -> None:
        """Register a new spare and pass it on to the daemon."""
        request_fd, out_r, err_r, pidfd = fds
        child = Child(order.serial, pid, pidfd, [out_r, err_r])
        self.children[child.serial] = child
        self.by_pid[child.pid] = child
        ready = wire.SpareReady(child.serial, child.pid, grouped).encode()
        self.send(ready, [request_fd, out_r, err_r, pidfd])
        os.close(request_fd)
        self.handlers[pidfd] = child
        self.epoll.register(pidfd, select.EPOLLIN)

    def send(self, message: bytes, fds: list[int] | None = None) -> None:
        """Send to the daemon; a daemon that is gone is noticed by the loop."""
        with contextlib.suppress(OSError):
            if fds:
                socket.send_fds(self.control, [message], fds)
            else:
                self.control.send(message)

    # -- children -------------------------------------------------------------

    def report_exit(self, child: Child) -> None:
        """Tell the daemon how a child ended; keep it as a zombie until ACK."""
        peeked = kernel.peek_exit(child.pid)
        if peeked is None:
            return
        # First of all: somebody waits for it.
        ran = not (child.is_task and is_spare(child.pid))
        self.send(wire.Exited(child.serial, *peeked, ran=ran).encode())
        child.exited = True
        self.epoll.unregister(child.pidfd)
        del self.handlers[child.pidfd]

    def forget(self, child: Child) -> None:
        """The daemon has the result: reap the child and free its descriptors."""
        if not child.exited:
            return
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child.pid, 0)
        self.release(child)

    def release(self, child: Child) -> None:
        """Free the descriptors of a reaped child."""
        child.drop_pipes()
        os.close(child.pidfd)
        del self.children[child.serial]
        del self.by_pid[child.pid]

    def reap_orphans(self) -> None:
        """Reap what is ours by adoption; a child that is a task stays pinned."""
        if self.zygote.may_have_spare:
            # A spare may exist that we have not been told of yet.
            self.reap_at = time.monotonic() + _REAP_S
            return
        self.reap_at = math.inf
        for pid in tree.children_of_self():
            if pid not in self.by_pid:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)

    def signal_group(self, child: Child, number: int) -> None:
        """Signal the task's process group; the leader alone if there is none yet."""
        try:
            os.killpg(child.pid, number)
        except ProcessLookupError:
            if not child.exited:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(child.pidfd, number)
        except PermissionError:
            pass

    def kill_all(
        self, children: list[Child], markers: frozenset[bytes] = frozenset()
    ) -> None:
        """End the whole trees of some children; *markers* find those who hide."""
        leaders = frozenset(child.pid for child in children)
        spared = frozenset(self.by_pid) - leaders | {os.getpid(), self.zygote.pid}
        if leaders:
            tree.kill_trees(leaders, markers, spared, may_freeze=self.may_signal_all)

    def end(self) -> NoReturn:
        """Leave nothing behind. As pid 1 the kernel does it when we exit."""
        if not self.is_init:
            tree.kill_everything(
                may_signal_all=self.may_signal_all, deadline_s=_END_DEADLINE_S
            )
        os._exit(0)


def _capability_union() -> int:
    union = 0
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith(_CAPABILITY_LINES):
                union |= int(line.split()[1], 16)
    return union


def _hello(settings: Settings, program: Program) -> wire.Hello:
    rules = settings.rules()
    return wire.Hello(
        os.getpid(),
        os.getuid(),
        os.getgid(),
        kernel.landlock_abi() if rules is not None else 0,
        bool(rules is not None and rules.scoped),
        os.fstat(program.filter_fd).st_size > 0,
        bool(prctl.get_no_new_privs()),
        _capability_union(),
    )


def _set_up(settings: Settings) -> None:
    if settings.become is not None:
        uid, gid, groups = settings.become
        confine.become_peer(uid, gid, groups, confined=settings.confined)
    elif settings.confined:
        with step("capset"):
            # In a user namespace there may be no right to drop the bounding set; what
            # it allows there reaches nothing outside, and hello reports it.
            with contextlib.suppress(PermissionError):
                kernel.drop_bounding_set()
            kernel.clear_capabilities()
    confine.seal_process(confined=settings.confined)
    rules = settings.rules()
    if rules is not None:
        with step("landlock-outer"):
            outer = confine.build_ruleset(rules, scoped=True)
            outer.restrict_self(settings.log_flags)
            outer.close()
    confine.check_mounts(settings.mounts)


def main(control_fd: int) -> NoReturn:
    """Run a cell over the control socket *control_fd*."""
    _ignore_signals()
    control = socket.socket(fileno=control_fd)
    os.set_inheritable(control_fd, False)  # noqa: FBT003 - as os spells it
    wakeup_r, wakeup_w = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    signal.set_wakeup_fd(wakeup_w, warn_on_full_buffer=False)
    try:
        message, fds = receive(control, _CONFIG_FDS + 1)
        if message[:1] != wire.CONFIG or len(fds) < _CONFIG_FDS:
            os._exit(1)
        settings = Settings(**marshal.loads(read_payload(fds[0])))  # noqa: S302 - the daemon's
        program = Program(*fds[1:_CONFIG_FDS])
        home_fd = fds[_CONFIG_FDS] if len(fds) > _CONFIG_FDS else -1
        prctl.set_child_subreaper(1)
        _set_up(settings)
        keeper = Keeper(control, settings, program, home_fd)
        keeper.zygote.start()
        keeper.send(_hello(settings, program).encode())
        os.chdir("/")
        keeper.run(wakeup_r)
        keeper.end()
    except StepError as error:
        control.send(wire.Failed(error.step, error.reason).encode())
    except (OSError, wire.WireError, ValueError, TypeError) as error:
        with contextlib.suppress(OSError):
            control.send(wire.Failed("launcher", repr(error)).encode())
    os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]))
