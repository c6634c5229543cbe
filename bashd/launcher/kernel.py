"""Raw system calls and kernel constants: the only ctypes in the project.

Each constant names its header and the kernel or ABI that added it. Functions raise
`OSError` with the call's name. Nothing here decides anything.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from typing import Any, Final

_libc = ctypes.CDLL(None, use_errno=True)

# System call numbers are shared by all architectures since 5.1 (asm-generic/unistd.h).
SYS_OPENAT2: Final = 437
_MACHINE: Final = os.uname().machine
# Older calls differ per architecture (asm/unistd_64.h, asm-generic/unistd.h).
_NUMBERS: Final = {
    "x86_64": {
        "capset": 126, "unshare": 272,
        "setns": 308, "setfsuid": 122, "setfsgid": 123, "setgroups": 116,
    },
    "aarch64": {
        "capset": 91, "unshare": 97,
        "setns": 268, "setfsuid": 151, "setfsgid": 152, "setgroups": 159,
    },
}  # fmt: skip

# linux/prctl.h
PR_SET_DUMPABLE: Final = 4
_PR_CAPBSET_DROP: Final = 24
# linux/sched.h
CLONE_NEWUSER: Final = 0x10000000
CLONE_NEWNET: Final = 0x40000000
# linux/openat2.h, Linux 5.6
RESOLVE_NO_SYMLINKS: Final = 0x04
RESOLVE_NO_MAGICLINKS: Final = 0x02
# linux/falloc.h
_FALLOC_FL_KEEP_SIZE: Final = 1
_FALLOC_FL_PUNCH_HOLE: Final = 2
# linux/landlock.h
LANDLOCK_ACCESS_NET_BIND_TCP: Final = 1 << 0  # ABI 4
LANDLOCK_ACCESS_NET_CONNECT_TCP: Final = 1 << 1  # ABI 4
LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET: Final = 1 << 0  # ABI 6
LANDLOCK_SCOPE_SIGNAL: Final = 1 << 1  # ABI 6
LANDLOCK_RESTRICT_SELF_LOG_NEW_EXEC_ON: Final = 1 << 1  # ABI 7
_LANDLOCK_CREATE_RULESET: Final = 444
_LANDLOCK_CREATE_RULESET_VERSION: Final = 1


def _number(name: str) -> int:
    try:
        return _NUMBERS[_MACHINE][name]
    except KeyError:
        raise OSError(
            errno.ENOSYS, f"no system call number for {name} on {_MACHINE}"
        ) from None


def _syscall(name: str, number: int, *args: object) -> int:
    result = _libc.syscall(ctypes.c_long(number), *args)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return int(result)


def _prctl(option: int, value: int) -> None:
    zero = ctypes.c_ulong(0)
    if _libc.prctl(option, ctypes.c_ulong(value), zero, zero, zero) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}): {os.strerror(code)}")


def set_dumpable(dumpable: bool) -> None:  # noqa: FBT001 - mirrors the prctl
    """Allow or refuse ptrace, core dumps and /proc/PID access by the same uid.

    Source: PR_SET_DUMPABLE(2const). Reset by execve and by a change of uid.
    """
    _prctl(PR_SET_DUMPABLE, int(dumpable))


def drop_bounding_set() -> None:
    """Drop every capability this kernel knows from the bounding set.

    python-prctl refuses numbers newer than its own headers, so this asks the kernel.
    Source: PR_CAPBSET_DROP(2const); EINVAL marks the end.
    """
    for capability in range(64):
        try:
            _prctl(_PR_CAPBSET_DROP, capability)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            return


def landlock_abi() -> int:
    """Return Landlock's ABI version; 0 where the kernel has none or has it off."""
    result = _libc.syscall(
        ctypes.c_long(_LANDLOCK_CREATE_RULESET),
        None,
        ctypes.c_size_t(0),
        ctypes.c_uint32(_LANDLOCK_CREATE_RULESET_VERSION),
    )
    return max(int(result), 0)


def clear_capabilities() -> None:
    """Empty the effective, permitted and inheritable sets. Source: capset(2)."""
    header = struct.pack("=Ii", 0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, self
    data = struct.pack("=6I", 0, 0, 0, 0, 0, 0)
    _syscall("capset", _number("capset"), header, data)


def open_no_symlinks(path: str, flags: int) -> int:
    """Open *path* refusing every symbolic and magic link on the way.

    Returns a close-on-exec descriptor; ELOOP where a component is a link.
    Source: openat2(2), Linux 5.6.
    """
    how = struct.pack(
        "=QQQ", flags | os.O_CLOEXEC, 0, RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS
    )
    try:
        return _syscall(
            "openat2", SYS_OPENAT2, ctypes.c_int(-100), os.fsencode(path), how,
            ctypes.c_size_t(len(how)),
        )  # fmt: skip
    except OSError as error:
        # Under our own filter where Landlock knows no truncation: it cannot see flags
        # behind a pointer.
        if error.errno != errno.ENOSYS:
            raise
        return _walk(path, flags)


def _walk(path: str, flags: int) -> int:
    """Do what `open_no_symlinks` does, one component at a time."""
    onward = os.O_PATH | os.O_DIRECTORY
    *folders, last = [part for part in path.split("/") if part] or ["."]
    fd = os.open("/" if path.startswith("/") else ".", onward)
    try:
        for name in folders:
            inner = _open_no_link(name, onward, fd)
            os.close(fd)
            fd = inner
        return _open_no_link(last, flags, fd)
    finally:
        os.close(fd)


def _open_no_link(name: str, flags: int, folder_fd: int) -> int:
    # Looked at first: O_PATH opens the link itself, O_DIRECTORY says "no directory".
    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=folder_fd)
    try:
        if stat.S_ISLNK(os.fstat(fd).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name)
    finally:
        os.close(fd)
    return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder_fd)


def close_range(first: int, last: int) -> None:
    """Close a run of descriptors, *first* and *last* included.

    Source: close_range(2), Linux 5.9.
    """
    if last >= first:
        os.closerange(first, last + 1)


def punch_hole(fd: int, offset: int, length: int) -> None:
    """Return the blocks of a byte range to the file system; the size stays.

    Source: fallocate(2), FALLOC_FL_PUNCH_HOLE.
    """
    result = _libc.fallocate(
        ctypes.c_int(fd),
        ctypes.c_int(_FALLOC_FL_PUNCH_HOLE | _FALLOC_FL_KEEP_SIZE),
        ctypes.c_longlong(offset),
        ctypes.c_longlong(length),
    )
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"fallocate: {os.strerror(code)}")


# linux/stat.h, fcntl.h
_STATX_BTIME: Final = 0x800
_STATX_BYTES: Final = 256
_STATX_BTIME_AT: Final = 80
_AT_FDCWD: Final = -100
_AT_SYMLINK_NOFOLLOW: Final = 0x100


def birth_ns(path: str) -> int:
    """Return when a file or folder was made; 0 where the file system does not know.

    Together with the inode's number it is an identity: numbers are used again. Follows
    no link in the last component. Source: statx(2), stx_btime; Linux 4.11, glibc 2.28.
    """
    buffer = ctypes.create_string_buffer(_STATX_BYTES)
    done = _libc.statx(
        ctypes.c_int(_AT_FDCWD), os.fsencode(path), ctypes.c_int(_AT_SYMLINK_NOFOLLOW),
        ctypes.c_uint(_STATX_BTIME), buffer,
    )  # fmt: skip
    if done != 0 or not struct.unpack_from("=I", buffer.raw)[0] & _STATX_BTIME:
        return 0
    seconds, nanoseconds = struct.unpack_from("=qI", buffer.raw, _STATX_BTIME_AT)
    return int(seconds) * 1_000_000_000 + int(nanoseconds)


# linux/inotify.h
IN_CREATE: Final = 0x00000100
IN_MOVED_TO: Final = 0x00000080
IN_MOVED_FROM: Final = 0x00000040
IN_DELETE: Final = 0x00000200
IN_Q_OVERFLOW: Final = 0x00004000
IN_IGNORED: Final = 0x00008000
IN_ISDIR: Final = 0x40000000
_IN_ONLYDIR: Final = 0x01000000
_IN_DONT_FOLLOW: Final = 0x02000000
_IN_EXCL_UNLINK: Final = 0x04000000
INOTIFY_EVENT: Final = struct.Struct("=iIII")
"""wd, mask, cookie and the length of the name behind it."""


def inotify_init() -> int:
    """Return a new non-blocking, close-on-exec inotify descriptor.

    Source: inotify_init1(2).
    """
    fd = _libc.inotify_init1(ctypes.c_int(os.O_NONBLOCK | os.O_CLOEXEC))
    if fd < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"inotify_init1: {os.strerror(code)}")
    return int(fd)


def watch_folder(fd: int, path: str) -> int:
    """Watch what is made, removed and renamed in a folder; returns the watch's number.

    A folder that has a watch already keeps it: the number is the same. Follows no link
    in the last component. Source: inotify_add_watch(2).
    """
    mask = IN_CREATE | IN_MOVED_TO | IN_MOVED_FROM | IN_DELETE
    mask |= _IN_ONLYDIR | _IN_DONT_FOLLOW | _IN_EXCL_UNLINK
    number = _libc.inotify_add_watch(
        ctypes.c_int(fd), os.fsencode(path), ctypes.c_uint32(mask)
    )
    if number < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"inotify_add_watch: {os.strerror(code)}", path)
    return int(number)


def unshare(flags: int) -> None:
    """Leave the namespaces named by *flags*, with this thread.

    Source: unshare(2).
    """
    _syscall("unshare", _number("unshare"), ctypes.c_int(flags))


def setns(fd: int, nstype: int = 0) -> None:
    """Move this thread into the namespace behind *fd*.

    Source: setns(2).
    """
    _syscall("setns", _number("setns"), ctypes.c_int(fd), ctypes.c_int(nstype))


def set_thread_fs_identity(uid: int, gid: int, groups: tuple[int, ...]) -> None:
    """Access files as another user, this thread only.

    The raw calls change one thread, where glibc's wrappers change them all. Leaving
    uid 0 this way also drops the file capabilities from the effective set, so the
    kernel checks as for the user. Raises when a value did not take.
    Source: setfsuid(2), capabilities(7) "Effect of user ID changes".
    """
    array = (ctypes.c_uint32 * max(len(groups), 1))(*groups)
    _syscall("setgroups", _number("setgroups"), ctypes.c_size_t(len(groups)), array)
    for name, value in (("setfsgid", gid), ("setfsuid", uid)):
        number = ctypes.c_long(_number(name))
        _libc.syscall(number, ctypes.c_uint32(value))
        now = _libc.syscall(number, ctypes.c_uint32(0xFFFFFFFF))
        if now != value:
            raise OSError(errno.EPERM, f"{name}({value}) did not take")


class Landlock:
    """A Landlock ruleset under construction; owns its descriptor.

    Wraps the ``landlock`` package, which knows file rights, with the network and
    scope fields that later ABIs added.

    Args:
        fs: Handled file rights; whatever is handled and not allowed is refused.
        net: Handled TCP rights (ABI 4).
        scoped: Scopes (ABI 6).

    Raises:
        OSError: The kernel does not know one of the bits.
    """

    def __init__(self, fs: int, net: int = 0, scoped: int = 0) -> None:
        # Here, so that the daemon, which only asks for the ABI, need not load it.
        from landlock import plumbing  # noqa: PLC0415

        class _Attr(plumbing.RulesetAttr):
            _fields_ = [("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]  # noqa: RUF012

        attr = _Attr()
        attr.handled_access_fs = fs
        attr.net = net
        attr.scoped = scoped
        # An older kernel takes a shorter struct and refuses one with unknown bits.
        size = 24 if scoped else 16 if net else 8
        ctypes.set_errno(0)
        # Its functions are partial objects without types.
        self._plumbing: Any = plumbing
        self.fd = int(self._plumbing.get_create_ruleset()(ctypes.byref(attr), size, 0))
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "landlock_create_ruleset")
        os.set_inheritable(self.fd, False)  # noqa: FBT003 - as os spells it

    def allow_fd(self, parent_fd: int, access: int) -> None:
        """Allow *access* on the file or everything beneath the folder *parent_fd*."""
        attr = self._plumbing.PathBeneathAttr(access, parent_fd)
        ctypes.set_errno(0)
        result = self._plumbing.get_add_rule()(self.fd, 1, ctypes.byref(attr), 0)
        if result != 0:
            raise OSError(ctypes.get_errno(), "landlock_add_rule")

    def restrict_self(self, flags: int = 0) -> None:
        """Enter a new domain with these rules; they can only be narrowed later."""
        ctypes.set_errno(0)
        if self._plumbing.get_restrict_self()(self.fd, flags) != 0:
            raise OSError(ctypes.get_errno(), "landlock_restrict_self")
