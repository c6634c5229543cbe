"""Runs inside a command and tries to get out: the attempts of ``bashd doctor --verify``.

Sent to a bare interpreter over stdin, so it knows the standard library and nothing of
bashd. It reads what to aim at as JSON from its first argument, tries everything, each in
a child of its own, and prints ``{attempt: outcome}``: ``through``, or why not. Nothing
is aimed at but the canaries it is told of.
"""

# A bare interpreter starts faster without pathlib, and each attempt is to be one call;
# whatever an attempt runs into is its outcome.
# ruff: noqa: PTH101, PTH103, PTH104, PTH108, PTH120, PTH123, PTH208, PTH211
# ruff: noqa: S103, SIM117, BLE001

from __future__ import annotations

import contextlib
import errno
import importlib
import json
import os
import platform
import select
import signal
import socket
import stat
import struct
import sys
from collections.abc import Callable

THROUGH = "through"
_SECONDS = 5
# By name: this is never part of a process of bashd's, whose raw calls are all in one
# module of the launcher.
ctypes = importlib.import_module("ctypes")
_libc = ctypes.CDLL(None, use_errno=True)
# asm/unistd_64.h and asm-generic/unistd.h; numbers from 424 on are the same everywhere.
_CALLS = {
    "x86_64": {
        "ptrace": 101, "process_vm_readv": 310, "prlimit64": 302, "add_key": 248,
        "perf_event_open": 298, "bpf": 321, "userfaultfd": 323, "socket": 41,
        "sched_setscheduler": 144,
    },
    "aarch64": {
        "ptrace": 117, "process_vm_readv": 270, "prlimit64": 261, "add_key": 217,
        "perf_event_open": 241, "bpf": 280, "userfaultfd": 282, "socket": 198,
        "sched_setscheduler": 119,
    },
}  # fmt: skip
_IO_URING_SETUP = 425
_PIDFD_GETFD = 438
_PTRACE_SEIZE = 0x4206
_RLIMIT_NOFILE = 7

Target = dict[str, str]
"""What to aim at, by name."""


def _call(name: str | int, *arguments: int | bytes) -> int:
    """Make a raw system call; a plain int would be passed as 32 bits only."""
    number = _CALLS[platform.machine()][name] if isinstance(name, str) else name
    wide = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = int(_libc.syscall(ctypes.c_long(number), *wide))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def _read(path: str) -> None:
    with open(path, "rb") as file:
        if not file.read(1):
            raise OSError(errno.ENODATA, "nothing in it")


def _write(path: str) -> None:
    with open(path, "ab") as file:
        file.write(b"x")


# -- files ------------------------------------------------------------------------------


def write_outside(at: Target) -> None:
    """Change a file beside the workspace."""
    _write(f"{at['outside']}/file")


def create_outside(at: Target) -> None:
    """Make a file beside the workspace."""
    _write(f"{at['outside']}/new")


def remove_outside(at: Target) -> None:
    """Remove a file beside the workspace."""
    os.unlink(f"{at['outside']}/removable")


def rename_outside(at: Target) -> None:
    """Move a file out of the workspace."""
    _write(f"{at['workspace']}/moving")
    os.rename(f"{at['workspace']}/moving", f"{at['outside']}/moved")


def link_outside(at: Target) -> None:
    """Write through a symbolic and through a hard link made inside."""
    link, hard = f"{at['workspace']}/link", f"{at['workspace']}/hard"
    for path in (link, hard):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    os.symlink(f"{at['outside']}/file", link)
    with contextlib.suppress(OSError):
        os.link(f"{at['outside']}/file", hard)
        _write(hard)
        return
    _write(link)


def procfs_outside(at: Target) -> None:
    """Write through the root of another process."""
    _write(f"/proc/{at['pid']}/root{at['outside']}/file")


def write_workspace(at: Target) -> None:
    """Change the workspace in read-only mode."""
    _write(f"{at['workspace']}/written")


def chmod_outside(at: Target) -> None:
    """Change the mode of a file beside the workspace."""
    os.chmod(f"{at['outside']}/file", 0o640)


def touch_outside(at: Target) -> None:
    """Change the times of a file beside the workspace."""
    os.utime(f"{at['outside']}/file", (1, 1))


def write_tmp(at: Target) -> None:
    """Write into the host's /tmp."""
    _write(at["host_tmp"])


def write_shared_memory(at: Target) -> None:
    """See what others keep in /dev/shm."""
    _read(at["host_shm"])


# -- what the host runs in the workspace ------------------------------------------------


def _plant(path: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="ascii") as file:
        file.write("#!/bin/sh\n")
    os.chmod(path, 0o755)


def _make_repository(path: str) -> None:
    for name in ("objects", "refs", "hooks"):
        os.makedirs(f"{path}/{name}")
    for name, text in (("HEAD", "ref: refs/heads/main\n"), ("config", "[core]\n")):
        with open(f"{path}/{name}", "w", encoding="ascii") as file:
            file.write(text)


def plant_hook(at: Target) -> None:
    """Plant a hook in the workspace's repository."""
    _plant(f"{at['workspace']}/.git/hooks/pre-commit")


def plant_configuration(at: Target) -> None:
    """Make git run a command, the way git itself writes its configuration."""
    config = f"{at['workspace']}/.git/config"
    with open(f"{config}.lock", "w", encoding="ascii") as file:
        file.write("[core]\n\tpager = false\n")
    try:
        os.rename(f"{config}.lock", config)
    except OSError:
        os.unlink(f"{config}.lock")
        raise


def plant_repository(at: Target) -> None:
    """Make a repository that brings a hook along."""
    _make_repository(f"{at['workspace']}/r/.git")
    _plant(f"{at['workspace']}/r/.git/hooks/post-merge")


def replace_repository(at: Target) -> None:
    """Move the repository away and put another in its place."""
    own = f"{at['workspace']}/.git"
    os.rename(own, f"{at['workspace']}/moved-away")
    _make_repository(own)
    _plant(f"{own}/hooks/post-merge")


def plant_file(at: Target) -> None:
    """Plant a file that a shell or an editor runs."""
    _plant(f"{at['workspace']}/.envrc")


# -- secrets ----------------------------------------------------------------------------


def read_secret(at: Target) -> None:
    """Read a masked file."""
    _read(f"{at['secret']}/key")


def read_secret_by_link(at: Target) -> None:
    """Read a masked file through a link made inside."""
    link = f"{at['workspace']}/secret-link"
    with contextlib.suppress(FileExistsError):
        os.symlink(at["secret"], link)
    _read(f"{link}/key")


def read_secret_by_proc(at: Target) -> None:
    """Read a masked file through /proc."""
    for name in ("self", at["pid"], "1"):
        with contextlib.suppress(OSError):
            _read(f"/proc/{name}/root{at['secret']}/key")
            return
    raise OSError(errno.ENOENT, "by no way through /proc")


def read_masked_file(at: Target) -> None:
    """Read a masked single file."""
    _read(at["secret_file"])


def read_state(at: Target) -> None:
    """Look into the daemon's state."""
    os.listdir(at["state"])
    _read(f"{at['state']}/{at['state_file']}")


def read_environment(at: Target) -> None:
    """Find a credential of the caller's, in its environment or anybody's."""
    sought = [f"{name}={at['token']}".encode() for name in at["variables"].split()]
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            with open(f"/proc/{name}/environ", "rb") as file:
                if not set(sought).isdisjoint(file.read().split(b"\0")):
                    return
    raise OSError(errno.ENOENT, "in no environment")


# -- sockets ----------------------------------------------------------------------------


def _greeted(connection: socket.socket) -> None:
    connection.settimeout(_SECONDS)
    if not connection.recv(1):
        raise OSError(errno.ECONNRESET, "nobody spoke")


def connect_path(at: Target) -> None:
    """Connect to somebody's Unix socket."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(f"{at['outside']}/socket")
        _greeted(connection)


def connect_path_by_number(at: Target) -> None:
    """The same, with bits in the family that the kernel does not look at."""
    fd = _call("socket", (1 << 32) | socket.AF_UNIX, socket.SOCK_STREAM, 0)
    with socket.socket(fileno=fd) as connection:
        connection.connect(f"{at['outside']}/socket")
        _greeted(connection)


def connect_abstract(at: Target) -> None:
    """Connect to an abstract Unix socket of the host's."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect("\0" + at["abstract"])
        _greeted(connection)


def connect_daemon(at: Target) -> None:
    """Connect to bashd's own socket."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(at["daemon"])


def connect_loopback(at: Target) -> None:
    """Connect to a service of the host, with the network off."""
    with socket.create_connection(("127.0.0.1", int(at["port"])), _SECONDS) as found:
        _greeted(found)


def send_datagram(at: Target) -> None:
    """Send a datagram out of the machine, with the network off."""
    # 192.0.2.1 is nobody's (RFC 5737): the packet is routed and lost.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.connect(("192.0.2.1", 9))
        if sender.getsockname()[0].startswith("127."):
            raise OSError(errno.ENETUNREACH, "it stays on this machine")
        sender.send(at["token"].encode())


# -- processes --------------------------------------------------------------------------


def signal_outside(at: Target) -> None:
    """Signal a process outside."""
    os.kill(int(at["pid"]), signal.SIGCONT)


def read_memory(at: Target) -> None:
    """Read the memory of a process outside."""
    buffer = ctypes.create_string_buffer(8)
    local = struct.pack("QQ", ctypes.addressof(buffer), 8)
    try:
        _call(
            *("process_vm_readv", int(at["pid"]), local, 1),
            *(struct.pack("QQ", 0, 8), 1, 0),
        )
    except OSError as error:
        # Whoever may read gets EFAULT for address 0.
        if error.errno != errno.EFAULT:
            raise


def trace_outside(at: Target) -> None:
    """Become the tracer of a process outside."""
    _call("ptrace", _PTRACE_SEIZE, int(at["pid"]), 0, 0)


def take_descriptor(at: Target) -> None:
    """Take a descriptor out of a process outside."""
    pidfd = os.pidfd_open(int(at["pid"]))
    _call(_PIDFD_GETFD, pidfd, 0, 0)


def limit_outside(at: Target) -> None:
    """Lower a limit of a process outside."""
    _call("prlimit64", int(at["pid"]), _RLIMIT_NOFILE, struct.pack("QQ", 512, 4096), 0)


def schedule_outside(at: Target) -> None:
    """Change the scheduling of a process outside."""
    _call("sched_setscheduler", int(at["pid"]), 3, struct.pack("i", 0))


# -- the kernel -------------------------------------------------------------------------


def open_knob(_at: Target) -> None:
    """Open a setting of the kernel for writing; nothing is written."""
    os.close(os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY))


def make_device(at: Target) -> None:
    """Make a device node."""
    path = f"{at['workspace']}/device"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))


def mount_something(at: Target) -> None:
    """Mount something over a folder of the workspace."""
    folder = os.fsencode(f"{at['workspace']}/mounted")
    os.makedirs(folder, exist_ok=True)
    if _libc.mount(b"none", folder, b"tmpfs", 0, None) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    _libc.umount(folder)


def new_user_namespace(_at: Target) -> None:
    """Make a user namespace, in which one has every capability."""
    if _libc.unshare(0x10000000) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def use_io_uring(_at: Target) -> None:
    """Set up io_uring."""
    _call(_IO_URING_SETUP, 2, b"\0" * 120)


def use_userfaultfd(_at: Target) -> None:
    """Handle page faults of its own."""
    _call("userfaultfd", 1)


def use_bpf(_at: Target) -> None:
    """Load a map into the kernel."""
    _call("bpf", 0, struct.pack("IIII", 2, 4, 8, 1) + b"\0" * 56, 72)


def use_perf(_at: Target) -> None:
    """Count events of the kernel."""
    attributes = struct.pack("IIQ", 1, 64, 1) + b"\0" * 24 + struct.pack("Q", 1 << 6)
    _call("perf_event_open", attributes + b"\0" * 16, 0, -1, -1, 0)


def use_keyring(_at: Target) -> None:
    """Keep something in a kernel keyring that outlives the command."""
    _call("add_key", b"user\0", b"bashd-verify\0", b"x", 1, -3)


def use_crypto_sockets(_at: Target) -> None:
    """Open a socket to the kernel's ciphers."""
    socket.socket(38, socket.SOCK_SEQPACKET, 0).close()


def use_packet_sockets(_at: Target) -> None:
    """See every packet of the machine."""
    socket.socket(17, socket.SOCK_RAW, 0).close()


def keep_privileges(_at: Target) -> None:
    """Have a capability, or be able to get one by running a program."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        fields = dict(line.split(":", 1) for line in file if ":" in line)
    may = any(int(fields[f"Cap{name}"], 16) for name in ("Prm", "Eff", "Inh", "Amb"))
    if not may and fields["NoNewPrivs"].strip() == "1":
        raise OSError(errno.EPERM, "no capability, and no new privileges")


ATTEMPTS: dict[str, Callable[[Target], None]] = {
    attempt.__name__: attempt
    for attempt in (
        *(write_outside, create_outside, remove_outside, rename_outside, link_outside),
        *(procfs_outside, write_workspace, chmod_outside, touch_outside, write_tmp),
        *(write_shared_memory, read_secret, read_secret_by_link, read_secret_by_proc),
        *(plant_hook, plant_configuration, plant_repository, replace_repository),
        *(plant_file, read_masked_file, read_state, read_environment, connect_path),
        *(connect_path_by_number, connect_abstract, connect_daemon, connect_loopback),
        *(send_datagram, signal_outside, read_memory, trace_outside, take_descriptor),
        *(limit_outside, schedule_outside, open_knob, make_device, mount_something),
        *(new_user_namespace, use_io_uring, use_userfaultfd, use_bpf, use_perf),
        *(use_keyring, use_crypto_sockets, use_packet_sockets, keep_privileges),
    )
}


def outcome(attempt: Callable[[Target], None], at: Target) -> str:
    """Try one thing in a child and say what came of it."""
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = THROUGH
        try:
            signal.alarm(_SECONDS)
            attempt(at)
        except OSError as error:
            said = f"{errno.errorcode.get(error.errno or 0, '?')}: {error.strerror}"
        except BaseException as error:
            said = f"failed by itself: {error!r}"
        finally:
            with contextlib.suppress(OSError):
                os.write(write_fd, said.encode())
            os._exit(0)
    os.close(write_fd)
    ready, _, _ = select.select([read_fd], [], [], _SECONDS + 1)
    said = os.read(read_fd, 4096).decode() if ready else ""
    os.close(read_fd)
    _, status = os.waitpid(pid, 0)
    if said:
        return said
    return f"ended by signal {os.WTERMSIG(status)}" if status else "said nothing"


def main() -> None:
    """Try what the argument asks for and print the outcomes."""
    asked = json.loads(sys.argv[1])
    print(
        json.dumps(
            {name: outcome(ATTEMPTS[name], asked["at"]) for name in asked["try"]}
        )
    )


if __name__ == "__main__":
    main()
