"""Runs inside a command: tries every way to read, steer or end other processes.

Sent to an interpreter over stdin, so it knows nothing but the standard library.
``intruder.py VERBS PID…`` prints JSON: for each verb the pids on which it was permitted.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import struct
import sys
from collections.abc import Callable
from pathlib import Path

libc = ctypes.CDLL(None, use_errno=True)
PIDFD_GETFD = 438
PTRACE_SEIZE = 0x4206
RLIMIT_NOFILE = 7
NUMBERS = {
    "x86_64": {"ptrace": 101, "process_vm_readv": 310, "prlimit64": 302},
    "aarch64": {"ptrace": 117, "process_vm_readv": 270, "prlimit64": 261},
}[os.uname().machine]


def call(number: int, *arguments: object) -> int:
    """Make a raw system call; raise what it answers."""
    # A plain int is passed as 32 bits and leaves the register's others as they were.
    wide = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(ctypes.c_long(number), *wide)
    if result < 0:
        raise OSError(ctypes.get_errno(), f"call {number}")
    return result


def trace(pid: int) -> None:
    """Become its tracer; the kernel lets go when this process ends."""
    call(NUMBERS["ptrace"], PTRACE_SEIZE, pid, 0, 0)


def read_memory(pid: int) -> None:
    """Read from address 0: who may not gets EPERM, who may gets EFAULT."""
    buffer = ctypes.create_string_buffer(8)
    local = struct.pack("QQ", ctypes.addressof(buffer), 8)
    try:
        call(NUMBERS["process_vm_readv"], pid, local, 1, struct.pack("QQ", 0, 8), 1, 0)
    except OSError as error:
        if error.errno != errno.EFAULT:
            raise


def limit(pid: int) -> None:
    """Lower how many files it may open."""
    new = struct.pack("QQ", 256, 4096)
    call(NUMBERS["prlimit64"], pid, RLIMIT_NOFILE, new, None)


def ask_limit(pid: int) -> None:
    """Only look at a limit."""
    call(
        NUMBERS["prlimit64"], pid, RLIMIT_NOFILE, None, ctypes.create_string_buffer(16)
    )


def open_memory(pid: int, flags: int) -> None:
    """Open its memory as a file."""
    os.close(os.open(f"/proc/{pid}/mem", flags))


def read_environment(pid: int) -> None:
    """Read the environment it was started with."""
    Path(f"/proc/{pid}/environ").read_bytes()


def take_descriptor(pid: int) -> None:
    """Copy its stdout."""
    pidfd = os.pidfd_open(pid)
    try:
        os.close(call(PIDFD_GETFD, pidfd, 1, 0))
    finally:
        os.close(pidfd)


def look_at_descriptor(pid: int) -> None:
    """See what its stdout leads to."""
    Path(f"/proc/{pid}/fd/1").readlink()


def look_at_root(pid: int) -> None:
    """See the file system as it does."""
    Path(f"/proc/{pid}/root/").stat()


def by_pidfd(pid: int) -> None:
    """End it through a pidfd."""
    pidfd = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    finally:
        os.close(pidfd)


READ = {
    "trace": trace,
    "process_vm_readv": read_memory,
    "mem for reading": lambda pid: open_memory(pid, os.O_RDONLY),
    "mem for writing": lambda pid: open_memory(pid, os.O_RDWR),
    "environ": read_environment,
    "pidfd_getfd": take_descriptor,
    "fd": look_at_descriptor,
    "root": look_at_root,
    "prlimit": limit,
    "prlimit to look": ask_limit,
}
SIGNALS = {
    number.name: lambda pid, number=number: os.kill(pid, number)
    for number in (
        *(signal.SIGSTOP, signal.SIGINT, signal.SIGHUP),
        *(signal.SIGUSR1, signal.SIGTERM, signal.SIGKILL),
    )
}
VERBS: dict[str, dict[str, Callable[[int], None]]] = {
    "read": READ,
    "signal": SIGNALS | {"pidfd_send_signal": by_pidfd},
    "stop": {"SIGSTOP": SIGNALS["SIGSTOP"]},
    "end": {"SIGKILL": SIGNALS["SIGKILL"]},
}


def everybody_here() -> list[int]:
    """Return every process this one can see."""
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def main(verbs: str, pids: list[int]) -> None:
    """Try each verb on each process but this one and its shell."""
    permitted: dict[str, list[int]] = {}
    pids = [pid for pid in pids if pid not in (os.getpid(), os.getppid())]
    for name, attack in VERBS[verbs].items():
        permitted[name] = []
        for pid in pids:
            try:
                attack(pid)
            except OSError:
                continue
            permitted[name].append(pid)
    print(json.dumps({name: found for name, found in permitted.items() if found}))


if __name__ == "__main__":
    main(sys.argv[1], [int(word) for word in sys.argv[2:]] or everybody_here())
