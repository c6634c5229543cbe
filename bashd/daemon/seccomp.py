"""The system calls a confined command has no business with, compiled to BPF.

libseccomp (through pyseccomp) compiles once per combination of switches; the programs
travel to the zygote in memfds and are inherited by every command. Groups are chosen
by what a developer command never needs, not by what is dangerous in general: builds,
debuggers, test runners and package managers must work.
"""

# ruff: noqa: ANN401 - pyseccomp has no types

from __future__ import annotations

import errno
import functools
import os
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from bashd.core.errors import HostError
from bashd.launcher.kernel import LANDLOCK_RESTRICT_SELF_LOG_NEW_EXEC_ON

# linux/sched.h: namespaces a command may not make for itself.
_CLONE_NAMESPACES: Final = (
    0x00020000, 0x02000000, 0x04000000, 0x08000000,
    0x10000000, 0x20000000, 0x40000000, 0x00000080,
)  # fmt: skip
# asm-generic/ioctls.h, linux/tiocl.h: input faked into a terminal (CVE-2016-2568), and
# line disciplines, which load a module nobody has asked for.
_TERMINAL_REQUESTS: Final = (0x5412, 0x541C, 0x5423)  # TIOCSTI, TIOCLINUX, TIOCSETD
# bits/socket.h
_AF_UNIX: Final = 1
_AF_INET: Final = 2
_AF_INET6: Final = 10
_AF_NETLINK: Final = 16
_SOCK_RAW: Final = 3
_SOCK_TYPE_MASK: Final = 0xF
# asm-generic/fcntl.h
_O_ACCMODE: Final = 0o3
_O_TRUNC: Final = 0o1000
_UNKNOWN_CALL: Final = -1  # __NR_SCMP_ERROR in seccomp.h
_REFUSED_FAMILIES: Final = (17, 38, 40)  # AF_PACKET, AF_ALG, AF_VSOCK
_FAMILIES: Final = (_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK)
_LAST_FAMILY: Final = 45
"""AF_MCTP. Families between are protocols that hardly anybody has looked at, each in a
module that a socket() loads. Larger numbers are also those with bits beyond the 32 that
the kernel looks at, which would pass by a comparison with any family."""

KERNEL_SURFACE: Final = (
    "acct", "add_key", "bpf", "delete_module", "finit_module", "init_module",
    "io_uring_enter", "io_uring_register", "io_uring_setup", "ioperm", "iopl",
    "kcmp", "kexec_file_load", "kexec_load", "keyctl", "lookup_dcookie",
    "name_to_handle_at", "nfsservctl", "open_by_handle_at",
    "perf_event_open", "quotactl", "quotactl_fd", "reboot", "request_key",
    "settimeofday", "clock_settime", "clock_adjtime", "adjtimex", "swapoff",
    "swapon", "syslog", "uselib", "userfaultfd", "vhangup",
)  # fmt: skip
MOUNTS: Final = (
    "fsconfig", "fsmount", "fsopen", "fspick", "mount", "mount_setattr",
    "move_mount", "open_tree", "pivot_root", "umount2", "chroot",
)  # fmt: skip
FOREIGN_IPC: Final = (
    "mq_open", "mq_unlink", "msgctl", "msgget", "msgrcv", "msgsnd",
    "semctl", "semget", "semop", "semtimedop", "shmat", "shmctl", "shmget",
)  # fmt: skip
"""SysV and POSIX queues: one namespace for the whole host under landlock."""
OTHERS_BY_PID: Final = (
    ("prlimit64", 0), ("sched_setattr", 0), ("sched_setparam", 0),
    ("sched_setscheduler", 0), ("migrate_pages", 0), ("move_pages", 0),
)  # fmt: skip
"""Calls that change another process of the same uid without any further check, and
the argument that names it; 0 there means the caller itself."""
OTHERS_BY_USER: Final = (("setpriority", 2), ("ioprio_set", 3))
"""Calls that change all processes of a user at once, and what says so as their first
argument: PRIO_USER, IOPRIO_WHO_USER. 0 as the second means the caller's own uid."""


@dataclass(frozen=True, slots=True)
class Switches:
    """What the runner and the policy decide about the filter."""

    shared_host: bool
    """No namespaces around the command: foreign IPC and others' scheduling go too."""
    unix_sockets: bool
    inet_sockets: bool
    """False where the network must be off and no namespace could be made."""
    namespaces: bool
    """The policy allows new namespaces and mounts inside them."""
    truncation: bool = True
    """False where the only wall is a Landlock that does not know truncation (ABI 2):
    there a file could be emptied wherever its owner may write, without being opened
    for writing."""
    log_layers: bool = False
    """Log programs that put a Landlock layer of their own on, and let them: what such
    a layer refuses is not recorded, so the records' silence proves nothing then."""


class Filters(NamedTuple):
    """Compiled programs, arrays of struct sock_filter; what either refuses is refused.

    Two, because putting a long one on costs 0.2 ms, each time.
    """

    cell: bytes
    """Of the zygote and all it forks."""
    spare: bytes
    """What the zygote itself still needs; empty for nothing."""


NO_FILTERS: Final = Filters(b"", b"")


@functools.cache
def compile_filters(switches: Switches) -> Filters:
    """Compile the filters.

    Raises:
        HostError: libseccomp is missing, with the package to install.
    """
    lib = _library()
    return Filters(_for_the_cell(lib, switches), _for_each_spare(lib, switches))


def _new_filter(lib: Any) -> Any:
    program = lib.SyscallFilter(lib.ALLOW)
    # 32-bit and x32 entries would pass by every rule.
    program.set_attr(lib.Attr.ACT_BADARCH, lib.ERRNO(errno.ENOSYS))
    return program


def _for_each_spare(lib: Any, switches: Switches) -> bytes:
    if switches.namespaces:
        return b""
    program = _new_filter(lib)
    # It hides its flags behind a pointer; glibc falls back to clone on ENOSYS. The
    # zygote forks with it, so that a spare is born in its cgroup.
    _refuse(lib, program, lib.ERRNO(errno.ENOSYS), "clone3")
    return _export(program)


def _for_the_cell(lib: Any, switches: Switches) -> bytes:
    program = _new_filter(lib)
    refuse = lib.ERRNO(errno.EPERM)
    names: list[str] = list(KERNEL_SURFACE)
    if not switches.namespaces:
        names += MOUNTS
    if switches.shared_host:
        names += FOREIGN_IPC
    for name in names:
        _refuse(lib, program, refuse, name)
    _refuse_namespaces(lib, program, refuse, switches)
    _refuse_on_others(lib, program, refuse, switches)
    for request in _TERMINAL_REQUESTS:
        # Masked: the kernel looks at the low 32 bits only (CVE-2019-10063).
        _refuse(
            lib, program, refuse, "ioctl",
            lib.Arg(1, lib.MASKED_EQ, 0xFFFFFFFF, request),
        )  # fmt: skip
    _refuse_sockets(lib, program, switches)
    if not switches.truncation:
        _refuse_truncation(lib, program)
    if switches.log_layers:
        # All but those whose own refusals are recorded too, as the spare's layer.
        everything = lib.Arg(1, lib.NE, LANDLOCK_RESTRICT_SELF_LOG_NEW_EXEC_ON)
        _refuse(lib, program, lib.LOG, "landlock_restrict_self", everything)
    return _export(program)


def _library() -> Any:
    try:
        import pyseccomp  # noqa: PLC0415 - its absence is an answer
    except (ImportError, RuntimeError, OSError) as error:
        raise HostError(
            f"the seccomp filter cannot be compiled ({error});"
            " install it: apt-get install libseccomp2, dnf install libseccomp"
        ) from error
    return pyseccomp


def _refuse(lib: Any, program: Any, action: int, name: str, *args: Any) -> None:
    if lib.resolve_syscall(lib.system_arch(), name) == _UNKNOWN_CALL:
        # Not a call of this architecture, or newer than this libseccomp.
        return
    try:
        program.add_rule(action, name, *args)
    except (ValueError, OSError) as error:
        raise HostError(f"libseccomp refused the rule for {name}: {error}") from error


def _refuse_on_others(lib: Any, program: Any, refuse: int, switches: Switches) -> None:
    for name, argument in OTHERS_BY_PID:
        _refuse(lib, program, refuse, name, lib.Arg(argument, lib.NE, 0))
    for name, everybody in OTHERS_BY_USER:
        # Masked, as below: it is an int, of which the kernel looks at 32 bits.
        _refuse(
            lib, program, refuse, name, lib.Arg(0, lib.MASKED_EQ, 0xFFFFFFFF, everybody)
        )
    if switches.shared_host:
        _refuse(lib, program, refuse, "sched_setaffinity", lib.Arg(0, lib.NE, 0))
        _refuse(lib, program, refuse, "setpriority", lib.Arg(1, lib.NE, 0))
        _refuse(lib, program, refuse, "ioprio_set", lib.Arg(1, lib.NE, 0))


def _refuse_namespaces(lib: Any, program: Any, refuse: int, switches: Switches) -> None:
    if switches.namespaces:
        return
    for flag in _CLONE_NAMESPACES:
        masked = lib.Arg(0, lib.MASKED_EQ, flag, flag)
        _refuse(lib, program, refuse, "unshare", masked)
        if flag != 0x00000080:  # noqa: PLR2004 - CLONE_NEWTIME is clone3's only
            _refuse(lib, program, refuse, "clone", masked)
    _refuse(lib, program, refuse, "setns")


def _refuse_sockets(lib: Any, program: Any, switches: Switches) -> None:
    refuse, unknown = lib.ERRNO(errno.EPERM), lib.ERRNO(errno.EAFNOSUPPORT)
    refused: list[int] = list(_REFUSED_FAMILIES)
    if not switches.unix_sockets:
        refused.append(_AF_UNIX)
    if not switches.inet_sockets:
        refused += [_AF_INET, _AF_INET6]
    _refuse(lib, program, unknown, "socket", lib.Arg(0, lib.GT, _LAST_FAMILY))
    for family in range(_LAST_FAMILY + 1):
        exactly = lib.Arg(0, lib.EQ, family)
        if family in refused:
            _refuse(lib, program, refuse, "socket", exactly)
        elif family not in _FAMILIES:
            _refuse(lib, program, unknown, "socket", exactly)
    for family in {_AF_INET, _AF_INET6}.difference(refused):
        _refuse(
            lib, program, refuse, "socket", lib.Arg(0, lib.EQ, family),
            lib.Arg(1, lib.MASKED_EQ, _SOCK_TYPE_MASK, _SOCK_RAW),
        )  # fmt: skip


def _refuse_truncation(lib: Any, program: Any) -> None:
    """Refuse to cut a file off by its path; by a descriptor it needs one for writing.

    As Landlock would, so that it is taken for what it is: a refusal of a file.
    """
    refuse = lib.ERRNO(errno.EACCES)
    for name in ("truncate", "truncate64"):
        _refuse(lib, program, refuse, name)
    for name, flags in (("open", 1), ("openat", 2)):
        # Access mode 3 asks the file's permissions and opens for neither; see open(2).
        for mode in (os.O_RDONLY, _O_ACCMODE):
            mask = _O_ACCMODE | _O_TRUNC
            cut = lib.Arg(flags, lib.MASKED_EQ, mask, mode | _O_TRUNC)
            _refuse(lib, program, refuse, name, cut)
    # It hides its flags behind a pointer; whoever uses it knows older kernels, too.
    _refuse(lib, program, lib.ERRNO(errno.ENOSYS), "openat2")


def _export(program: Any) -> bytes:
    fd = os.memfd_create("seccomp", os.MFD_CLOEXEC)
    with os.fdopen(fd, "w+b") as file:
        program.export_bpf(file)
        file.seek(0)
        return file.read()
