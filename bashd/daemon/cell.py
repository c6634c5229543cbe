"""One cell: the runner process, its launcher, and the daemon's end of the wire.

Theory of operation
    `open_cell` starts the runner (bubblewrap, or the bare launcher), hands it one end
    of a SEQPACKET socket and waits for the hello. From then on `Cell.pump` is the one
    reader of that socket; it puts spares into a queue and wakes runs whose command
    has ended. A cell that dies before its hello is a runner failure. When the socket
    ends, every run of the cell is told that it is lost.

    Nothing that arrives is trusted: descriptors are counted, numbers are checked,
    anything else ends the cell.
"""

from __future__ import annotations

import contextlib
import json
import marshal
import os
import select
import socket
import subprocess
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import trio

from bashd.core.errors import RunnerFailedError
from bashd.core.model import Mode
from bashd.daemon import code, tree
from bashd.daemon.memfd import sealed_memfd
from bashd.daemon.orders import Orders
from bashd.daemon.pidfd import host_pid
from bashd.daemon.readable import Readable
from bashd.daemon.transfer import Relay
from bashd.launcher import wire
from bashd.launcher.channel import CutOffError, receive

if TYPE_CHECKING:
    from bashd.daemon.cgroup import Group
    from bashd.daemon.cgroups import CellGroups
    from bashd.daemon.seccomp import Filters

_SPARE_TIMEOUT_S = 15.0
"""A fork takes milliseconds. A cell that brings none for so long, whatever its commands
have done to it, is given up for a fresh one: no call waits for ever."""
_HELLO_TIMEOUT_S = 20.0
"""A cold start takes 0.1 s; under heavy load and emulation it may take seconds."""
_INFO_TIMEOUT_S = 5.0
_ORDER_AGAIN_S = 0.2
"""By then somebody's end may have freed descriptors."""
_HOLD_S = 1.0
"""For a keeper to say that it holds a pipe. Without it a stream is only slower."""
_DIAGNOSTIC_BYTES = 4096


@dataclass(frozen=True, slots=True)
class CellSpec:
    """What to start: the runner's command line and the launcher's settings."""

    argv: tuple[str, ...]
    """Complete but for the control socket's number, which is appended."""
    bwrap_args: tuple[str, ...]
    """Passed through ``--args``; empty for the bare launcher."""
    settings: dict[str, object]
    filters: Filters
    """Compiled seccomp filter; empty for none."""
    confined: bool
    expect_uid: int
    mode: str
    runner: str
    cell_id: str = ""
    home_fd: int = -1
    """O_PATH folder from which the launcher dials home; not closed here."""
    pass_fds: tuple[int, ...] = ()
    """Descriptors the runner needs (namespaces, bound folders); not closed here."""


class Spare:
    """A process that waits for one request; owns four descriptors."""

    __slots__ = (
        "came_to", "cell", "exit", "exited", "group", "is_task", "marker", "pidfd",
        "recorded", "request", "second_pipes", "serial", "stderr_fd", "stdout_fd",
        "wake",
    )  # fmt: skip

    def __init__(
        self, cell: Cell, serial: int, fds: list[int], request: socket.socket | None
    ) -> None:
        self.cell = cell
        self.serial = serial
        self.request = request
        """None for an adopted command: it runs already."""
        if request is not None:
            request.setblocking(False)  # noqa: FBT003 - as socket spells it
        self.stdout_fd, self.stderr_fd, self.pidfd = fds
        for fd in fds[:2]:
            os.set_blocking(fd, False)
        self.is_task = request is None
        """Its keeper holds it through a death of the daemon, until its end has been
        acknowledged."""
        self.recorded = trio.Event()
        """For a task: set when its result is on disk, so that it may be."""
        self.second_pipes: dict[int, int] = {}
        """For an adopted task: stream, 1 or 2, to a pipe with its older bytes."""
        self.exited = trio.Event()
        self.wake = trio.Event()
        """Set with `exited`, and by whoever wants the run to look up."""
        self.came_to: wire.Failed | bool = False
        """`outcome`, kept when the run has settled."""
        self.exit: wire.Exited | None = None
        """None after `exited` is set means that the cell was lost."""
        self.marker = b""
        """An entry in the environment of its command and of what descends from it."""
        self.group: Group | None = None
        """Its cgroup, which it never leaves; None where it has none."""

    def send(
        self, request: wire.Request, stdin_fd: int | None, script: bytes | None
    ) -> None:
        """Hand over the command. Raises `OSError` if the spare is gone."""
        if self.request is None:
            raise BrokenPipeError
        fds: list[int] = []
        owned: list[int] = []
        message = request.encode()
        try:
            if len(message) > wire.INLINE_BYTES:
                owned.append(sealed_memfd("request", message))
                message = wire.REQUEST_MEMFD
            fds += owned
            if stdin_fd is not None:
                fds.append(stdin_fd)
            if script is not None:
                owned.append(sealed_memfd("command", script))
                fds.append(owned[-1])
            if fds:
                socket.send_fds(self.request, [message], fds)
            else:
                self.request.send(message)
        finally:
            for fd in owned:
                os.close(fd)

    def has_started(self) -> bool:
        """Whether bash runs or nothing will any more, without taking a message.

        The spare's end of the request socket closes at exec, and when it dies.
        """
        if self.request is None:
            return True
        poll = select.poll()
        poll.register(self.request, select.POLLRDHUP)
        return bool(poll.poll(0))

    def runs(self) -> bool:
        """Whether it has said that it becomes bash, without taking the message."""
        if self.request is None:
            return True
        try:
            return self.request.recv(1, socket.MSG_PEEK) == wire.RUNNING
        except OSError:
            return False

    def outcome(self) -> wire.Failed | bool:
        """Say how far it came; only meaningful once it has ended.

        True when bash was started, the failed step, or False when nothing proves that
        anything ran.
        """
        if self.request is None:
            return self.exit is None or self.exit.ran
        # Descriptors are not asked for, so that none can come.
        try:
            message = self.request.recv(wire.PACKET_BYTES)
        except OSError:
            return False
        if message == wire.RUNNING:
            # The step after RUNNING is execve itself; its failure follows.
            try:
                message = self.request.recv(wire.PACKET_BYTES)
            except OSError:
                return True
            if not message:
                return True
        if message[:1] == wire.STEP_FAILED:
            return wire.Failed.decode(message, [])
        return False

    def ended(self) -> None:
        """Wake whoever waits for the end."""
        self.exited.set()
        self.wake.set()

    def close(self) -> None:
        """Release what is left; pipes that a drain took over are -1 by then."""
        if self.request is not None:
            self.request.close()
        pipes = (self.stdout_fd, self.stderr_fd, *self.second_pipes.values())
        self.second_pipes = {}
        for fd in (*pipes, self.pidfd):
            if fd >= 0:
                os.close(fd)
        self.stdout_fd = self.stderr_fd = self.pidfd = -1


class RunnerProcess(Protocol):
    """The first process of a cell on the host: ours, or one we adopted."""

    pid: int

    @property
    def returncode(self) -> int | None:
        """Exit status; None while it lives."""
        ...

    async def wait(self) -> int:
        """Wait for its end."""
        ...

    def kill(self) -> None:
        """Send SIGKILL."""
        ...


class Cell:
    """A live cell. Made by `open_cell` or by adoption; ends with `end` or by itself.

    Args:
        spec_mode: Mode of the commands in it.
        control: The daemon's end of the wire, non-blocking.
        process: Whose end is the end of the cell.
        cell_id: Names it in records.
        groups: The cgroups of its commands; None where there are none.
    """

    def __init__(
        self,
        spec_mode: str,
        control: socket.socket,
        process: RunnerProcess,
        *,
        cell_id: str = "",
        groups: CellGroups | None = None,
    ) -> None:
        self.mode = spec_mode
        self.cell_id = cell_id
        self.process = process
        self.lost = False
        """No further command may be started here."""
        self.retired = False
        """Replaced by a newer cell; ends when its last task does."""
        self.running: dict[int, Spare] = {}
        self.last_used = trio.current_time()
        self.groups = groups
        self.holds_pipes = True
        """Its keeper knows HOLD; one that an earlier bashd started may not."""
        self.keep_spares = 0
        """How many spares to hold ready; set by whoever starts commands here."""
        self._control = control
        self._spares: deque[Spare] = deque()
        self._known: dict[int, Spare] = {}
        self._arrival = trio.Event()
        """Set, and replaced, whenever a spare has come or none will come any more."""
        self._orders = Orders(control)
        self._readable: Readable | None = None
        """What the pump waits for; None when it does not run."""
        self._waiting = 0
        """How many commands wait for a spare."""
        self._expected = 0
        """How many commands have chosen this cell and have no spare of it yet."""
        self._ordered: dict[int, Group | None] = {}
        """Spares on their way, by serial, and the cgroup each is to be born in."""
        self._last_serial = 0
        self._to_hold: dict[tuple[int, int], trio.Event] = {}
        """Second pipes that the keeper was asked to hold, by serial and stream."""
        self._gone = trio.Event()
        self._ending = False
        self._finishers: trio.Nursery | None = None

    # -- spares -----------------------------------------------------------------

    def ask_for_spares(self, wanted: int) -> None:
        """Have the launcher fork so many that *wanted* are ready or on their way."""
        missing = wanted - len(self._spares) - len(self._ordered)
        for _ in range(0 if self.lost else missing):
            self._order_spare()

    def _order_spare(self) -> None:
        self._last_serial = serial = self._last_serial + 1
        message = wire.pack(wire.FORK, b"%d" % serial)
        made = None if self.groups is None else self.groups.make(serial)
        if made is None:
            self._ordered[serial] = None
            self._orders.send(message)
            return
        self._ordered[serial], folder_fd = made
        self._orders.send(message, [folder_fd])
        os.close(folder_fd)

    @property
    def at_work(self) -> bool:
        """Whether a command runs here or is about to."""
        return bool(self.running or self._expected)

    @contextlib.contextmanager
    def expecting(self) -> Generator[None]:
        """Keep the cell while a command that has chosen it takes a spare of it.

        Without this the cell could be ended as idle in between, by its age or to make
        room for another one.
        """
        self._expected += 1
        try:
            yield
        finally:
            self._expected -= 1

    async def take_spare(self) -> Spare:
        """Take a spare, waiting for one to be forked if there is none.

        Raises:
            RunnerFailedError: The cell is lost.
        """
        while True:
            # The spares of a cell that ends are there for a moment longer.
            while self._spares and not self.lost:
                spare = self._spares.popleft()
                if spare.exited.is_set():
                    self.release(spare)
                    continue
                self.running[spare.serial] = spare
                self.last_used = trio.current_time()
                return spare
            if self.lost:
                raise RunnerFailedError(f"the cell ended: {self.diagnosis()}")
            await self._wait_for_spare()

    async def _wait_for_spare(self) -> None:
        """Wait for an arrival, with one on its way for everybody who waits.

        Commands may wait for each other, so none may have to wait for another's end.
        """
        self._waiting += 1
        try:
            self.ask_for_spares(self._waiting)
            with trio.move_on_after(_SPARE_TIMEOUT_S) as patience:
                await self._arrival.wait()
        finally:
            self._waiting -= 1
        if patience.cancelled_caught and not self._spares:
            raise RunnerFailedError(
                f"no process was forked within {_SPARE_TIMEOUT_S:g} s"
            )

    def give_back(self, spare: Spare) -> None:
        """Put a spare back that was taken and got no command."""
        self.running.pop(spare.serial, None)
        self._spares.appendleft(spare)
        self._tell_waiting()

    def release(self, spare: Spare) -> None:
        """Acknowledge a spare's end and free it; its pid may be reused from now on."""
        self._orders.send(wire.pack(wire.ACK, b"%d" % spare.serial))
        # Only now: a fork during the command would compete with it.
        self.ask_for_spares(self.keep_spares)
        self.running.pop(spare.serial, None)
        self._known.pop(spare.serial, None)
        self.last_used = trio.current_time()
        self._close(spare)

    def _close(self, spare: Spare) -> None:
        spare.close()
        self._retire_group(spare)

    def _retire_group(self, spare: Spare) -> None:
        group, spare.group = spare.group, None
        self._retire(group)

    def _retire(self, group: Group | None) -> None:
        if group is not None and self.groups is not None:
            self.groups.cgroups.retire(group)

    def pidfds(self) -> list[int]:
        """Return the pidfds of every spare and command that is known."""
        return [spare.pidfd for spare in self._known.values() if spare.pidfd >= 0]

    def mark_task(self, spare: Spare) -> None:
        """Have the launcher keep this command through a death of the daemon."""
        spare.is_task = True
        self._orders.send(wire.pack(wire.TASK, b"%d" % spare.serial))

    async def relay(self, spare: Spare, stream: int) -> Relay | None:
        """Return a second pipe for a task's stream, 1 or 2, which its keeper holds too.

        What is in it survives this daemon. None where that cannot be had.
        """
        if self.lost or not self.holds_pipes:
            return None
        try:
            relay = Relay()
        except OSError:
            return None
        name = (spare.serial, stream)
        held = self._to_hold[name] = trio.Event()
        try:
            message = wire.pack(wire.HOLD, b"%d" % spare.serial, b"%d" % stream)
            self._orders.send(message, [relay.read_fd])
            with trio.move_on_after(_HOLD_S):
                await held.wait()
                return relay
        except BaseException:
            relay.close()
            raise
        finally:
            del self._to_hold[name]
        relay.close()
        return None

    def adopt(self, spare: Spare) -> None:
        """Take in a command that a keeper held through our predecessor's death."""
        self._known[spare.serial] = spare
        self.running[spare.serial] = spare

    # -- signals ----------------------------------------------------------------

    def signal(self, spare: Spare, number: int) -> None:
        """Signal the process group of a running command."""
        self._orders.send(wire.pack(wire.SIGNAL, b"%d" % spare.serial, b"%d" % number))

    def kill_tree(self, spare: Spare, marker: bytes) -> None:
        """Send SIGKILL to the command and everything that descends from it."""
        exact = spare.group is not None and spare.group.kill()
        if not exact or not Mode(self.mode).confines:
            # An unconfined command may have left its group.
            self._orders.send(wire.pack(wire.KILL, b"%d" % spare.serial, marker))

    def oom_kills(self) -> int:
        """Return how many processes the cell as a whole has lost to its memory limit.

        Counted where a hierarchy of version 1 keeps that limit; 0 elsewhere.
        """
        return 0 if self.groups is None else self.groups.oom_kills()

    def drop_pipes(self, spare: Spare) -> None:
        """Let the launcher close its copies, so that the writer can meet EPIPE."""
        self._orders.send(wire.pack(wire.DROP, b"%d" % spare.serial))

    # -- life -------------------------------------------------------------------

    async def pump(self) -> None:
        """Read the control socket until the cell ends, then settle what is left."""
        async with trio.open_nursery() as nursery:
            self._finishers = nursery
            nursery.start_soon(self._orders.serve)
            with contextlib.suppress(OSError, wire.WireError, EOFError):
                await self._read_on()
            # Not when this is cancelled: then the daemon leaves, and the cell's tasks
            # are another daemon's.
            self._finishers = None
            self.lost = True
            await self._end_orphans()
            self._mark_lost()
            nursery.cancel_scope.cancel()
        self._tell_waiting()
        await self._reap()
        if self.groups is not None:
            await self.groups.end()
        self._gone.set()

    async def _read_on(self) -> None:
        """Act on what arrives until the cell ends."""
        readable = self._readable = Readable()
        try:
            readable.add(self._control.fileno(), self._handle_all)
            while True:
                await readable.wait()
        finally:
            self._readable = None
            readable.close()

    def watch(self, fd: int, callback: Callable[[], None]) -> None:
        """Have the pump call *callback* whenever *fd* is readable, until `unwatch`.

        As long as the cell lives; what the callback raises ends the cell.

        Raises:
            OSError: No more descriptors can be watched.
        """
        if self._readable is not None:
            self._readable.add(fd, callback)

    def unwatch(self, fd: int) -> None:
        """Undo `watch`, if it is not over by itself."""
        if self._readable is not None:
            self._readable.remove(fd)

    def finish_later(self, work: Callable[[], Awaitable[None]]) -> bool:
        """Run *work* as long as the cell lives; False where it lives no more.

        What *work* holds it gives back when it is cancelled, too.
        """
        if self._finishers is None:
            return False
        self._finishers.start_soon(work)
        return True

    def _handle_all(self) -> None:
        while self._handle_one():
            pass

    def _handle_one(self) -> bool:
        try:
            message, fds = receive(self._control, 4)
        except BlockingIOError:
            return False
        except CutOffError as error:
            if error.message[:1] != wire.SPARE:
                raise
            self._do_without(error.message)
            return True
        try:
            self._handle(message, fds)
        except wire.WireError:
            _close_all(fds)
            raise
        return True

    def _handle(self, message: bytes, fds: list[int]) -> None:
        """Act on one message; nobody has its descriptors when it is malformed."""
        tag = message[:1]
        if tag == wire.EXITED:
            report = wire.Exited.decode(message, fds)
            spare = self._known.get(report.serial)
            if spare is not None:
                spare.exit = report
                spare.ended()
            else:
                # Released before its end was known: the keeper pins its pid no longer.
                self._orders.send(wire.pack(wire.ACK, b"%d" % report.serial))
        elif tag == wire.SPARE:
            self._add_spare(message, fds)
        elif tag == wire.HELD:
            held = self._to_hold.get(wire.PipeHeld.decode(message, fds))
            if held is not None:
                held.set()
        elif not message:
            raise EOFError
        else:
            raise wire.WireError(f"unexpected message {tag!r} from a cell")

    def _do_without(self, message: bytes) -> None:
        """Drop a spare whose descriptors found no room here; order another later.

        It ends by itself: the other end of its request socket is closed.
        """
        serial = wire.SpareReady.decode(message, [0] * wire.SpareReady.FD_COUNT).serial
        self._retire(self._ordered.pop(serial, None))

        async def order_again() -> None:
            await trio.sleep(_ORDER_AGAIN_S)
            self.ask_for_spares(max(self.keep_spares, self._waiting, 1))

        self.finish_later(order_again)

    def _add_spare(self, message: bytes, fds: list[int]) -> None:
        ready = wire.SpareReady.decode(message, fds)
        if ready.serial not in self._ordered:
            raise wire.WireError(f"spare {ready.serial} was not asked for")
        # With its protocol, which it would ask the kernel for.
        request = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fds[0])
        spare = Spare(self, ready.serial, fds[1:], request)
        self._known[ready.serial] = spare
        spare.group = self._ordered.pop(ready.serial)
        if not ready.grouped:
            self._retire_group(spare)
        self._spares.append(spare)
        self._tell_waiting()

    def _tell_waiting(self) -> None:
        """Have everybody who waits for a spare look again.

        All, not one: who is told may be cancelled in that moment, and the others would
        not hear of the spare it leaves.
        """
        if self._waiting:
            self._arrival.set()
            self._arrival = trio.Event()

    async def _end_orphans(self) -> None:
        """End what outlived its keeper, before anybody hears that it is lost."""
        if self.groups is not None and self.groups.kill() and Mode(self.mode).confines:
            return
        left = [
            (pid, spare.marker)
            for spare in self.running.values()
            if (pid := host_pid(spare.pidfd)) or spare.marker
        ]
        if left and not self._ending:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(tree.kill_orphans, left)

    def _mark_lost(self) -> None:
        for held in self._to_hold.values():
            held.set()
        for spare in self._known.values():
            spare.ended()
        while self._spares:
            spare = self._spares.popleft()
            self._known.pop(spare.serial, None)
            self._close(spare)

    async def end(self) -> None:
        """End the cell and everything in it; returns when its processes are gone."""
        self.lost = self._ending = True
        self._orders.send(wire.END)
        with trio.CancelScope(shield=True):
            with trio.move_on_after(_END_TIMEOUT_S):
                await self._gone.wait()
            if not self._gone.is_set():
                self.process.kill()
                self._control.shutdown(socket.SHUT_RDWR)
                await self._gone.wait()
        self._control.close()

    async def _reap(self) -> None:
        with trio.CancelScope(shield=True):
            with trio.move_on_after(_END_TIMEOUT_S):
                await self.process.wait()
            if self.process.returncode is None:
                self.process.kill()
                await self.process.wait()

    def diagnosis(self) -> str:
        """Say in one line what the runner said last, or how it ended."""
        return f"runner exit status {self.process.returncode}"


_END_TIMEOUT_S = 8.0
"""Longer than the launcher's own deadline for stragglers."""


async def open_cell(
    spec: CellSpec,
    groups: CellGroups | None = None,
    hello_timeout_s: float = _HELLO_TIMEOUT_S,
) -> Cell:
    """Start a cell and wait for its hello. The caller runs `Cell.pump`.

    Raises:
        RunnerFailedError: It ended, answered nonsense, or is not what was asked for.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)  # noqa: FBT003 - as socket spells it
    said = os.memfd_create("runner-stderr", os.MFD_CLOEXEC)
    owned: list[int] = []
    try:
        info_fd, info_write_fd = os.pipe2(os.O_CLOEXEC)
        owned.append(info_fd)
        try:
            argv, fds = _command_line(spec, theirs.fileno(), info_write_fd, owned)
            process = await _start(argv, (*fds, theirs.fileno(), *spec.pass_fds), said)
        finally:
            os.close(info_write_fd)
        theirs.close()
        try:
            if groups is not None:
                await _enter_group(groups, process.pid, info_fd)
            await _shake_hands(spec, ours, process, hello_timeout_s, owned=owned)
        except BaseException as error:
            process.kill()
            ours.close()
            with trio.CancelScope(shield=True):
                await process.wait()
                if groups is not None:
                    await groups.end()
            if isinstance(error, RunnerFailedError):
                detail = _read_back(said)
                raise RunnerFailedError(
                    f"{error.message}: {detail}" if detail else error.message
                ) from error
            raise
    finally:
        theirs.close()
        _close_all([*owned, said])
    return Cell(spec.mode, ours, process, cell_id=spec.cell_id, groups=groups)


def _command_line(
    spec: CellSpec, control_fd: int, info_fd: int, owned: list[int]
) -> tuple[list[str], list[int]]:
    fds: list[int] = []
    argv = list(spec.argv)
    if spec.bwrap_args:
        payload = b"".join(os.fsencode(arg) + b"\0" for arg in spec.bwrap_args)
        args_fd = os.memfd_create("bwrap-args", os.MFD_CLOEXEC)
        owned.append(args_fd)
        os.write(args_fd, payload)
        os.lseek(args_fd, 0, os.SEEK_SET)
        fds += [args_fd, info_fd]
        names = {"{args}": str(args_fd), "{info}": str(info_fd)}
        argv = [names.get(part, part) for part in argv]
    return [*argv, str(control_fd)], fds


async def _enter_group(groups: CellGroups, runner_pid: int, info_fd: int) -> None:
    """Move the cell's first process into its cgroup, while it starts.

    It waits for its configuration, so whatever it forks comes later.
    """
    # bubblewrap names its child before it lets it go on. Whoever else is started has
    # no such descriptor: end of file, and the process is the cell's first itself.
    text = b""
    with trio.move_on_after(_INFO_TIMEOUT_S):
        while b"}" not in text:
            await trio.lowlevel.wait_readable(info_fd)
            data = os.read(info_fd, _DIAGNOSTIC_BYTES)
            if not data:
                break
            text += data
    try:
        pid = json.loads(text)["child-pid"] if text else runner_pid
    except (ValueError, KeyError, TypeError):
        return
    await groups.enter(pid)


async def _start(argv: list[str], fds: tuple[int, ...], said: int) -> trio.Process:
    try:
        # From a worker thread, which is why nothing here may use PR_SET_PDEATHSIG: it
        # follows the thread, and trio retires idle ones after ten seconds.
        return await trio.lowlevel.open_process(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            pass_fds=fds,
            cwd="/",
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"},
            start_new_session=True,
        )
    except OSError as error:
        raise RunnerFailedError(f"cannot start {argv[0]}: {error.strerror}") from error


async def _shake_hands(
    spec: CellSpec,
    control: socket.socket,
    process: trio.Process,
    timeout_s: float,
    *,
    owned: list[int],
) -> None:
    config = [
        sealed_memfd("config", marshal.dumps(spec.settings)),
        sealed_memfd("seccomp", spec.filters.cell),
        sealed_memfd("seccomp", spec.filters.spare),
    ]
    owned += config
    config.insert(1, code.keeper_fd())
    home = [spec.home_fd] if spec.home_fd >= 0 else []
    try:
        socket.send_fds(control, [wire.CONFIG], config + home)
    except OSError as error:
        raise RunnerFailedError("the runner ended before it was configured") from error
    with trio.move_on_after(timeout_s) as scope:
        await trio.lowlevel.wait_readable(control)
    if scope.cancelled_caught:
        raise RunnerFailedError(f"the runner said nothing for {timeout_s:g} s")
    try:
        message, fds = receive(control, 0)
        if message[:1] == wire.FAILED:
            failed = wire.Failed.decode(message, fds)
            raise RunnerFailedError(f"step {failed.step} failed: {failed.reason}")
        if not message:
            raise RunnerFailedError("the runner ended before its hello")
        hello = wire.Hello.decode(message, fds)
    except (OSError, wire.WireError) as error:
        raise RunnerFailedError(f"bad hello: {error}") from error
    _check_hello(spec, hello)


def _check_hello(spec: CellSpec, hello: wire.Hello) -> None:
    problems: list[str] = []
    if hello.uid != spec.expect_uid:
        problems.append(f"uid is {hello.uid}, not {spec.expect_uid}")
    if spec.confined:
        if not hello.no_new_privs:
            problems.append("no_new_privs is off")
        if hello.capabilities and hello.uid == 0:
            problems.append(f"capabilities are left: {hello.capabilities:x}")
        if spec.filters.cell and not hello.seccomp:
            problems.append("the seccomp filter is missing")
        if spec.settings.get("landlock") is not None and not hello.landlock_abi:
            problems.append("the Landlock layer is missing")
    if problems:
        raise RunnerFailedError(
            "the cell is not what was asked for: " + ", ".join(problems)
        )


def _read_back(fd: int) -> str:
    with contextlib.suppress(OSError):
        text = os.pread(fd, _DIAGNOSTIC_BYTES, 0).decode(errors="replace")
        return " / ".join(line for line in text.splitlines() if line.strip())
    return ""


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)
