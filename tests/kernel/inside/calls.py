"""Runs inside a command: makes system calls that no developer's command needs.

Prints JSON: for each call ``done`` or the name of the error. None of them could do harm
if it were permitted: they ask, or are given arguments that cannot be right.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import socket
import termios
from collections.abc import Callable

libc = ctypes.CDLL(None, use_errno=True)
MACHINE = os.uname().machine
# asm/unistd_64.h and asm-generic/unistd.h
NUMBERS = {
    "x86_64": {
        "acct": 163, "add_key": 248, "bpf": 321, "chroot": 161, "clock_settime": 227,
        "clone3": 435, "delete_module": 176, "fsopen": 430, "init_module": 175,
        "io_uring_setup": 425, "kcmp": 312, "kexec_load": 246, "keyctl": 250,
        "mount": 165, "mq_open": 240, "name_to_handle_at": 303,
        "open_by_handle_at": 304, "open_tree": 428, "perf_event_open": 298,
        "pivot_root": 155, "prlimit64": 302, "quotactl": 179, "reboot": 169,
        "request_key": 249, "sched_setattr": 314, "setns": 308, "shmget": 29,
        "swapon": 167, "syslog": 103, "umount2": 166, "unshare": 272,
        "userfaultfd": 323,
    },
    "aarch64": {
        "acct": 89, "add_key": 217, "bpf": 280, "chroot": 51, "clock_settime": 112,
        "clone3": 435, "delete_module": 106, "fsopen": 430, "init_module": 105,
        "io_uring_setup": 425, "kcmp": 272, "kexec_load": 104, "keyctl": 219,
        "mount": 40, "mq_open": 180, "name_to_handle_at": 264,
        "open_by_handle_at": 265, "open_tree": 428, "perf_event_open": 241,
        "pivot_root": 41, "prlimit64": 261, "quotactl": 60, "reboot": 142,
        "request_key": 218, "sched_setattr": 274, "setns": 268, "shmget": 194,
        "swapon": 224, "syslog": 116, "umount2": 39, "unshare": 97,
        "userfaultfd": 282,
    },
}[MACHINE]  # fmt: skip
NEWUSER, NEWNS, NEWPID, NEWNET = 0x10000000, 0x00020000, 0x20000000, 0x40000000
BAD = ctypes.c_long(-1)
NOWHERE = ctypes.c_void_p(8)
"""An address that cannot be read: what gets as far as this is permitted."""


def call(name: str, *arguments: object) -> None:
    """Make a system call; raise what it answers."""
    wide = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    if libc.syscall(ctypes.c_long(NUMBERS[name]), *wide) < 0:
        raise OSError(ctypes.get_errno(), name)


def in_child(work: Callable[[], object]) -> None:
    """Do something in a child, so that it changes nothing here."""
    child = os.fork()
    if child == 0:
        code = 0
        try:
            work()
        except OSError as error:
            code = error.errno or 255
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code:
        raise OSError(code, "in a child")


def fake_input(request: int) -> None:
    """Put a character into the input of a terminal of our own."""
    controlling, terminal = os.openpty()
    try:
        fcntl.ioctl(terminal, request, b"x")
    finally:
        os.close(controlling)
        os.close(terminal)


def limit_of_parent() -> None:
    """Ask for a limit of another process."""
    call("prlimit64", os.getppid(), 7, None, ctypes.create_string_buffer(16))


def open_socket(family: int, kind: int) -> None:
    """Open and close a socket."""
    socket.socket(family, kind).close()


CALLS: dict[str, Callable[[], object]] = {
    # The kernel's own surface.
    "keyctl": lambda: call("keyctl", 0, -3, 0),
    "add_key": lambda: call("add_key", NOWHERE, NOWHERE, None, 0, -3),
    "request_key": lambda: call("request_key", NOWHERE, NOWHERE, None, 0),
    "io_uring_setup": lambda: call("io_uring_setup", 1, NOWHERE),
    "userfaultfd": lambda: call("userfaultfd", -1),
    "perf_event_open": lambda: call("perf_event_open", NOWHERE, 0, -1, -1, 0),
    "kcmp": lambda: call("kcmp", os.getpid(), os.getpid(), 99, 0, 0),
    "name_to_handle_at": lambda: call("name_to_handle_at", -1, NOWHERE, None, None, 0),
    "bpf": lambda: call("bpf", 9999, NOWHERE, 0),
    "open_by_handle_at": lambda: call("open_by_handle_at", -1, NOWHERE, 0),
    "init_module": lambda: call("init_module", NOWHERE, 0, NOWHERE),
    "kexec_load": lambda: call("kexec_load", 0, 0, None, -1),
    "syslog": lambda: call("syslog", 99, None, 0),
    "acct": lambda: call("acct", NOWHERE),
    "swapon": lambda: call("swapon", NOWHERE, 0),
    "quotactl": lambda: call("quotactl", -1, NOWHERE, 0, None),
    "clock_settime": lambda: call("clock_settime", 0, NOWHERE),
    # Mounts and namespaces.
    "mount": lambda: call("mount", NOWHERE, NOWHERE, NOWHERE, 0, None),
    "umount2": lambda: call("umount2", NOWHERE, 0),
    "open_tree": lambda: call("open_tree", -1, NOWHERE, 0),
    "fsopen": lambda: call("fsopen", NOWHERE, 0),
    "pivot_root": lambda: call("pivot_root", NOWHERE, NOWHERE),
    "chroot": lambda: call("chroot", NOWHERE),
    "setns": lambda: call("setns", -1, 0),
    "unshare user": lambda: in_child(lambda: call("unshare", NEWUSER)),
    "unshare all": lambda: in_child(
        lambda: call("unshare", NEWUSER | NEWNS | NEWPID | NEWNET)
    ),
    "clone3": lambda: call("clone3", NOWHERE, 0),
    # Others of the same uid, and devices.
    "prlimit of another": limit_of_parent,
    "sched_setattr of another": lambda: call("sched_setattr", os.getppid(), NOWHERE, 0),
    "TIOCSTI": lambda: fake_input(termios.TIOCSTI),
    # Sockets that reach past the network's rules.
    "packet socket": lambda: open_socket(socket.AF_PACKET, socket.SOCK_DGRAM),
    "raw socket": lambda: open_socket(socket.AF_INET, socket.SOCK_RAW),
    "vsock": lambda: open_socket(socket.AF_VSOCK, socket.SOCK_STREAM),
    "alg socket": lambda: open_socket(socket.AF_ALG, socket.SOCK_SEQPACKET),
    # Shared with the whole host where there are no namespaces.
    "unix socket": lambda: open_socket(socket.AF_UNIX, socket.SOCK_STREAM),
    "shmget": lambda: call("shmget", 0, 4096, 0),
    "mq_open": lambda: call("mq_open", NOWHERE, 0, 0, None),
    # What has to work.
    "socketpair": lambda: [end.close() for end in socket.socketpair()],
    "inet socket": lambda: open_socket(socket.AF_INET, socket.SOCK_STREAM),
    "inet6 socket": lambda: open_socket(socket.AF_INET6, socket.SOCK_DGRAM),
    "fork": lambda: in_child(lambda: None),
    "own priority": lambda: in_child(lambda: os.nice(1)),
    "own limits": lambda: call(
        "prlimit64", 0, 7, None, ctypes.create_string_buffer(16)
    ),
}


def main() -> None:
    """Make every call."""
    found: dict[str, str] = {}
    for name, attempt in CALLS.items():
        try:
            attempt()
            found[name] = "done"
        except OSError as error:
            found[name] = errno.errorcode[error.errno or 0]
    print(json.dumps(found))


main()
