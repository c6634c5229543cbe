"""The zygote, which forks, and the spare, which becomes one command.

Both are already behind the cell's outer walls. A spare adds the inner Landlock layer
(without scopes, so that the kernel's records name the command while the session's
other tasks stay reachable), waits for one request, and execs bash. Until then every
signal it can ignore is ignored.
"""

from __future__ import annotations

import errno
import gc
import os
import resource
import signal
import socket
from dataclasses import dataclass
from typing import NoReturn

from . import confine, kernel, wire
from .confine import Settings, StepError, prctl, step
from .terminal import take_terminal

_FAILED_STATUS = 127
_REQUEST_FD = 3
"""Where a spare keeps its request socket, so that all above can be closed at once."""
_RULESET_FD = 4
_SCRIPT_FD = 9
"""Where bash reads a command that is too long for an argument."""
_LONG_COMMAND = b'eval -- "$(</dev/fd/9)" 9<&-'
"""Reads by itself, no program of the caller's PATH, and by name, so from the start."""
_SIGNALS = [number for number in range(1, 65) if number not in (9, 19, 32, 33)]
"""All but SIGKILL and SIGSTOP, which none can change, and glibc's two own."""


def ignore_signals() -> None:
    """Ignore every signal that can be ignored, except SIGCHLD's default."""
    for number in _SIGNALS:
        if number != signal.SIGCHLD:
            signal.signal(number, signal.SIG_IGN)


def catch_signals() -> None:
    """Catch every signal and do nothing.

    As good as ignoring while a spare waits, and better at its end: execve gives a
    caught signal its default by itself, where an ignored one would stay ignored and
    take a system call of its own (60 of them: 0.2 ms of a command's start). A command
    must see SIGPIPE and all others at their default. Source: execve(2).
    """
    for number in _SIGNALS:
        signal.signal(number, _do_nothing)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _do_nothing(_number: int, _frame: object) -> None:
    return


_NAME = "bashd-spare"
"""Name of a spare's process; exec gives it another, and a zombie keeps it."""


def is_spare(pid: int) -> bool:
    """Whether a process, dead or alive, has not become a command."""
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().rstrip("\n") == _NAME
    except OSError:
        return False


def run_zygote(channel: socket.socket, settings: Settings, program: bytes) -> NoReturn:
    """Answer each byte on *channel* with one spare until end of file.

    The filter is each spare's to install: it refuses clone3, which is how a spare is
    born in its cgroup.
    """
    status = 1
    try:
        _close_all_but(channel.fileno())
        signal.set_wakeup_fd(-1)
        catch_signals()
        rules = settings.rules()
        if settings.own_layer and rules is not None:
            with step("landlock-zygote"):
                layer = confine.build_ruleset(rules, scoped=True)
                layer.restrict_self(settings.log_flags)
                layer.close()
        inner = None
        if rules is not None and rules.handled:
            # A layer that handles nothing is no layer; the scopes are the outer one's.
            with step("landlock-inner"):
                inner = confine.build_ruleset(rules, scoped=False)
        _rehearse(settings, _REHEARSALS)
        gc.collect()
        gc.freeze()
        channel.send(b"!")
        while True:
            message, fds = receive(channel, 1)
            if not message:
                break
            walls = Walls(settings, inner, program)
            _answer_order(channel, fds[0] if fds else -1, walls)
        status = 0
    except StepError as error:
        channel.send(wire.Failed(error.step, error.reason).encode())
    finally:
        os._exit(status)


_REHEARSALS = 12
"""CPython specialises a function's bytecode after a few runs. Done here, before any
fork, those writes do not have to be copied page by page in every spare."""


def _rehearse(settings: Settings, times: int) -> None:
    """Go through what a spare does between its request and exec, without effect.

    The zygote does it for the bytecode, each spare once for the memory: the pages
    that this code writes to are its own by the time a request comes.
    """
    root = os.stat("/")
    sample = wire.Request(
        command=b"true",
        workdir=b"/",
        workdir_dev=root.st_dev,
        workdir_ino=root.st_ino,
        has_stdin=False,
        has_script=False,
        limits=((resource.RLIMIT_CORE, *resource.getrlimit(resource.RLIMIT_CORE)),),
        environment=tuple(b"NAME%d=value" % n for n in range(40)),
    ).encode()
    for _ in range(times):
        request = wire.Request.decode(sample)
        confine.check_mounts(settings.mounts)
        confine.enter_workdir(request.workdir, request.workdir_dev, request.workdir_ino)
        _environment(request)


def _environment(request: wire.Request) -> dict[bytes, bytes]:
    environment: dict[bytes, bytes] = {}
    for entry in request.environment:
        name, _, value = entry.partition(b"=")
        environment[name] = value
    return environment


def _close_all_but(keep_fd: int) -> None:
    kernel.close_range(3, keep_fd - 1)
    kernel.close_range(keep_fd + 1, 0x7FFFFFFE)


@dataclass(frozen=True, slots=True)
class Walls:
    """What a spare puts itself behind."""

    settings: Settings
    inner: kernel.Landlock | None
    program: bytes
    """Compiled seccomp filter; empty for none."""


def _answer_order(channel: socket.socket, group_fd: int, walls: Walls) -> None:
    try:
        _fork_spare(channel, group_fd, walls)
    except OSError:
        # A limit on processes or memory is reached: no descriptors says so.
        channel.send(b"-")
    finally:
        if group_fd >= 0:
            os.close(group_fd)


def _clone(group_fd: int) -> tuple[bool, int]:
    """Return whether the new sibling is in the cgroup, and its pid; 0 in itself."""
    if group_fd >= 0:
        try:
            return True, kernel.clone_sibling(group_fd)
        except OSError as error:
            if error.errno in _NO_PROCESS:
                raise
    return False, kernel.clone_sibling()


_NO_PROCESS = frozenset({errno.EAGAIN, errno.ENOMEM})


def _fork_spare(channel: socket.socket, group_fd: int, walls: Walls) -> None:
    daemon_end, spare_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    out_r, out_w = os.pipe2(os.O_CLOEXEC)
    err_r, err_w = os.pipe2(os.O_CLOEXEC)
    opened = [out_r, out_w, err_r, err_w]
    try:
        grouped, pid = _clone(group_fd)
        if pid == 0:
            _become_spare(spare_end.fileno(), out_w, err_w, walls)
        opened.append(os.pidfd_open(pid))
        socket.send_fds(
            channel,
            [b"%d %d" % (grouped, pid)],
            [daemon_end.fileno(), out_r, err_r, opened[-1]],
        )
    finally:
        daemon_end.close()
        spare_end.close()
        for fd in opened:
            os.close(fd)


def _become_spare(
    request_fd: int,
    out_fd: int,
    err_fd: int,
    walls: Walls,
) -> NoReturn:
    # Child, behind the outer walls. An inherited write end would delay end of file
    # of another task, so everything foreign goes now, not at exec.
    status = _FAILED_STATUS
    inner = walls.inner
    try:
        os.setsid()
        prctl.set_name(_NAME)
        os.dup2(out_fd, 1)
        os.dup2(err_fd, 2)
        high = 500
        os.dup2(request_fd, high, inheritable=False)
        if inner is not None:
            os.dup2(inner.fd, high + 1, inheritable=False)
        os.dup2(high, _REQUEST_FD, inheritable=False)
        if inner is not None:
            os.dup2(high + 1, _RULESET_FD, inheritable=False)
            inner.fd = _RULESET_FD
        kernel.close_range(_REQUEST_FD + 1 + (inner is not None), 0x7FFFFFFE)
        os.umask(0o022)
        _rehearse(walls.settings, 1)
        request = socket.socket(fileno=_REQUEST_FD)
        _serve_one(request, walls)
    except StepError as error:
        _report(wire.Failed(error.step, error.reason))
    except (OSError, wire.WireError) as error:
        _report(wire.Failed("spare", str(error)))
    finally:
        os._exit(status)


def _report(failure: wire.Failed) -> None:
    try:
        socket.socket(fileno=_REQUEST_FD).send(failure.encode(wire.STEP_FAILED))
    except OSError:
        os._exit(_FAILED_STATUS)


def _serve_one(request_socket: socket.socket, walls: Walls) -> None:
    inner, settings = walls.inner, walls.settings
    if inner is not None:
        with step("landlock"):
            inner.restrict_self(settings.log_flags)
            inner.close()
    if walls.program:
        with step("seccomp"):
            kernel.install_seccomp(walls.program)
    message, fds = receive(request_socket, max_fds=3)
    if not message:
        return
    if message[:1] == wire.REQUEST_MEMFD:
        message = read_payload(fds.pop(0))
    request = wire.Request.decode(message)
    _spawn(request_socket, request, fds, settings)


def _spawn(
    status: socket.socket, request: wire.Request, fds: list[int], settings: Settings
) -> None:
    if len(fds) != request.has_stdin + request.has_script:
        raise wire.WireError("descriptors do not match the request")
    with step("stdio"):
        if request.terminal is not None:
            take_terminal(status, *request.terminal)
        else:
            has_own = request.has_stdin
            os.dup2(fds[0] if has_own else os.open("/dev/null", os.O_RDONLY), 0)
    confine.check_mounts(settings.mounts)
    confine.enter_workdir(request.workdir, request.workdir_dev, request.workdir_ino)
    with step("rlimits"):
        for kind, soft, hard in request.limits:
            _limit(kind, soft, hard)
    environment = _environment(request)
    argv = [b"bash", b"-c", request.command]
    with step("stdio"):
        script_fd = fds[-1] if request.has_script else -1
        kernel.close_range(_REQUEST_FD + 1, script_fd - 1)
        if script_fd >= 0:
            os.dup2(script_fd, _SCRIPT_FD, inheritable=True)
            argv[2] = _LONG_COMMAND
        kernel.close_range(max(_SCRIPT_FD, _REQUEST_FD) + 1, 0x7FFFFFFE)
        if script_fd < 0:
            kernel.close_range(_REQUEST_FD + 1, _SCRIPT_FD)
    with step("exec"):
        status.send(wire.RUNNING)
        os.execve(settings.bash, argv, environment)  # noqa: S606 - it is the product


def _limit(kind: int, soft: int, hard: int) -> None:
    most = resource.getrlimit(kind)[1]
    if most != resource.RLIM_INFINITY:
        soft, hard = (
            most if value == resource.RLIM_INFINITY else min(value, most)
            for value in (soft, hard)
        )
    resource.setrlimit(kind, (soft, hard))


def receive(channel: socket.socket, max_fds: int) -> tuple[bytes, list[int]]:
    """Receive one packet and its descriptors, close-on-exec from the start.

    Raises:
        WireError: The packet or its descriptors were cut off.
    """
    message, fds, flags = _receive_fds(channel, max_fds)
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        for fd in fds:
            os.close(fd)
        raise wire.WireError("packet cut off")
    return message, fds


def _receive_fds(channel: socket.socket, max_fds: int) -> tuple[bytes, list[int], int]:
    # socket.recv_fds does not pass MSG_CMSG_CLOEXEC on, so this is recvmsg.
    data, ancillary, flags, _ = channel.recvmsg(
        wire.PACKET_BYTES,
        socket.CMSG_SPACE(max_fds * 4),
        socket.MSG_CMSG_CLOEXEC,
    )
    fds: list[int] = []
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            whole = len(payload) - len(payload) % 4
            fds.extend(
                int.from_bytes(payload[at : at + 4], "little")
                for at in range(0, whole, 4)
            )
    return data, fds, flags


def read_payload(fd: int) -> bytes:
    """Read a sealed memfd whole and close it."""
    try:
        size = os.fstat(fd).st_size
        if size > wire.MAX_PAYLOAD_BYTES:
            raise wire.WireError(f"payload of {size} bytes is too long")
        return os.pread(fd, size, 0)
    finally:
        os.close(fd)
