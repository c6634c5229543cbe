"""The keeper: first process of a cell; see the package docstring for the whole.

One epoll loop, no threads. It holds what must outlive everything else in the cell:
the children's pids (pinned by not reaping), their exit statuses and copies of the
read ends of their pipes.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
from typing import NoReturn

import landlock  # noqa: F401 - imported before privileges are given up
import prctl

from . import confine, home, kernel, tree, wire
from .confine import Settings, StepError, step
from .spare import ignore_signals, read_payload, receive, run_zygote

_END_DEADLINE_S = 5.0
"""How long the end of a cell waits for processes outside a pid namespace."""
_PIPES = 2
_CONFIG_FDS = 2
_CAPABILITY_LINES = ("CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:")


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
        program: bytes,
        home_fd: int,
    ) -> None:
        self.control = control
        self.home_fd = home_fd
        self.settings = settings
        self.program = program
        self.children: dict[int, Child] = {}
        self.by_pid: dict[int, Child] = {}
        self.next_serial = 1
        self.outstanding = 0
        """Spares asked of the zygote and not yet answered."""
        self.zygote: socket.socket | None = None
        self.zygote_pid = 0
        self.epoll = select.epoll()
        self.handlers: dict[int, Child] = {}
        """By pidfd: children whose end has not been reported."""
        self.ended = False
        self.is_init = os.getpid() == 1
        scoped = bool(settings.landlock and settings.landlock["scoped"] & 2)
        self.may_signal_all = settings.confined and (self.is_init or scoped)

    # -- set-up ---------------------------------------------------------------

    def start_zygote(self) -> None:
        """Fork the zygote and wait until it says that its layers are on."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            run_zygote(theirs, self.settings, self.program)
        theirs.close()
        self.zygote_pid = pid
        answer = ours.recv(wire.PACKET_BYTES)
        if answer != b"!":
            ours.close()
            if answer[:1] == wire.FAILED:
                failed = wire.Failed.decode(answer, [])
                raise StepError(failed.step, failed.reason)
            raise StepError("zygote", "it ended before it was ready")
        self.zygote = ours
        self.outstanding = 0
        self.epoll.register(ours.fileno(), select.EPOLLIN)

    # -- loop -----------------------------------------------------------------

    def run(self, wakeup_fd: int) -> None:
        """Serve until END or end of file on the control socket."""
        self.epoll.register(self.control.fileno(), select.EPOLLIN)
        self.epoll.register(wakeup_fd, select.EPOLLIN)
        pidfds = self.handlers
        while not self.ended:
            events = self.epoll.poll()
            # Exits first: somebody waits for them, and orphans can wait.
            for fd, _ in events:
                child = pidfds.get(fd)
                if child is not None:
                    self.report_exit(child)
            for fd, _ in events:
                if fd in pidfds:
                    continue
                if fd == self.control.fileno():
                    self.on_control()
                elif fd == wakeup_fd:
                    with contextlib.suppress(BlockingIOError):
                        os.read(wakeup_fd, 4096)
                    self.continue_zygote()
                    self.reap_orphans()
                elif self.zygote is not None and fd == self.zygote.fileno():
                    self.on_zygote()

    def on_control(self) -> None:
        """Obey one message of the daemon; anything malformed ends the cell."""
        try:
            message, fds = receive(self.control, 2)
        except ConnectionError:
            message, fds = b"", []
        for fd in fds:
            os.close(fd)
        tag = message[:1]
        if not tag:
            self.on_daemon_lost()
        elif tag == wire.END:
            self.ended = True
        elif tag == wire.FORK:
            self.ask_for_spares(wire.number(wire.unpack(message, 1)[0]))
        else:
            self.on_child_message(tag, message)

    def on_daemon_lost(self) -> None:
        """Dial home and go on with the running tasks, or end."""
        self.epoll.unregister(self.control.fileno())
        self.control.close()
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
        """Drop children that never became a command.

        Their request sockets ended with the daemon, so they leave by themselves; a
        task whose pipes the daemon had dropped holds nothing to hand over.
        """
        for child in list(self.children.values()):
            if not child.is_task or len(child.fds) != _PIPES:
                with contextlib.suppress(OSError):
                    self.epoll.unregister(child.pidfd)
                self.handlers.pop(child.pidfd, None)
                if child.is_task:
                    tree.kill_tree(
                        child.pid, b"", frozenset(), may_freeze=False
                    )
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(child.pidfd, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(child.pid, 0)
                child.exited = True
                self.release(child)

    def on_child_message(self, tag: bytes, message: bytes) -> None:
        """Handle the messages that name a child by its serial."""
        fields = wire.unpack(message)
        child = self.children.get(wire.number(fields[0]))
        if child is None:
            return
        if tag == wire.SIGNAL:
            self.signal_group(child, wire.number(fields[1]))
        elif tag == wire.KILL:
            self.kill(child, fields[1])
        elif tag == wire.ACK:
            self.forget(child)
        elif tag == wire.TASK:
            child.is_task = True
        elif tag == wire.DROP:
            child.drop_pipes()

    def ask_for_spares(self, count: int) -> None:
        """Have the zygote fork *count* spares; answers come through the loop."""
        for _ in range(count):
            try:
                if self.zygote is None:
                    self.start_zygote()
                assert self.zygote is not None  # noqa: S101 - set by start_zygote
                self.zygote.send(b"+")
            except OSError:
                self.lose_zygote()
                continue
            self.outstanding += 1

    def on_zygote(self) -> None:
        """Register a new spare and pass it on, or notice that the zygote is gone."""
        assert self.zygote is not None  # noqa: S101 - only polled while set
        try:
            message, fds = receive(self.zygote, 4)
        except OSError:
            message, fds = b"", []
        if not message:
            lost = self.outstanding
            self.lose_zygote()
            self.ask_for_spares(lost)
            return
        self.outstanding -= 1
        request_fd, out_r, err_r, pidfd = fds
        child = Child(self.next_serial, int(message), pidfd, [out_r, err_r])
        self.next_serial += 1
        self.children[child.serial] = child
        self.by_pid[child.pid] = child
        ready = wire.SpareReady(child.serial, child.pid).encode()
        self.send(ready, [request_fd, out_r, err_r, pidfd])
        os.close(request_fd)
        self.handlers[pidfd] = child
        self.epoll.register(pidfd, select.EPOLLIN)

    def continue_zygote(self) -> None:
        """Undo the SIGSTOP of a command of this cell, which no process can refuse.

        The kernel tells the parent of a stop as it does of an end.
        """
        if self.zygote is None:
            return
        with contextlib.suppress(ChildProcessError, ProcessLookupError):
            if os.waitid(os.P_PID, self.zygote_pid, os.WSTOPPED | os.WNOHANG):
                os.kill(self.zygote_pid, signal.SIGCONT)

    def lose_zygote(self) -> None:
        """Forget a zygote that was ended by a command of this cell."""
        if self.zygote is not None:
            with contextlib.suppress(OSError):
                self.epoll.unregister(self.zygote.fileno())
            self.zygote.close()
            self.zygote = None
        self.outstanding = 0
        self.reap_orphans()

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
        child.exited = True
        self.epoll.unregister(child.pidfd)
        del self.handlers[child.pidfd]
        self.send(wire.Exited(child.serial, *peeked).encode())

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
        if self.outstanding:
            # A spare may exist that we have not been told of yet.
            return
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

    def kill(self, child: Child, marker: bytes) -> None:
        """End the whole tree of a task."""
        spared = {other.pid for other in self.children.values()} - {child.pid}
        spared |= {os.getpid(), self.zygote_pid}
        tree.kill_tree(
            child.pid, marker, frozenset(spared), may_freeze=self.may_signal_all
        )

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


def _hello(settings: Settings, program: bytes) -> wire.Hello:
    rules = settings.rules()
    return wire.Hello(
        os.getpid(),
        os.getuid(),
        os.getgid(),
        kernel.landlock_abi() if rules is not None else 0,
        bool(rules is not None and rules.scoped),
        bool(program),
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
            outer.restrict_self()
            outer.close()
    confine.check_mounts(settings.mounts)


def main(control_fd: int) -> NoReturn:
    """Run a cell over the control socket *control_fd*."""
    ignore_signals()
    control = socket.socket(fileno=control_fd)
    os.set_inheritable(control_fd, False)
    wakeup_r, wakeup_w = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    signal.set_wakeup_fd(wakeup_w, warn_on_full_buffer=False)
    try:
        message, fds = receive(control, 3)
        if message[:1] != wire.CONFIG or len(fds) < _CONFIG_FDS:
            os._exit(1)
        settings = Settings(**json.loads(read_payload(fds[0])))
        program = read_payload(fds[1])
        home_fd = fds[2] if len(fds) > _CONFIG_FDS else -1
        prctl.set_child_subreaper(1)
        _set_up(settings)
        keeper = Keeper(control, settings, program, home_fd)
        keeper.start_zygote()
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
