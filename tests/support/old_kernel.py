"""Programs that see an older kernel: a seccomp filter answers for Landlock.

``python old_kernel.py ABI PROGRAM ARG…`` runs PROGRAM under a filter it cannot take
off. ABI 0: the calls do not exist. ABI N: the question for the version is answered
with N by a supervisor, everything else is the real kernel's. Run as a program of its
own, so it knows nothing of the tests.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
import sys

import pyseccomp

_VERSION_FLAG = 1
"""LANDLOCK_CREATE_RULESET_VERSION. Source: linux/landlock.h."""
_CALLS = (444, 445, 446)
"""landlock_create_ruleset, _add_rule, _restrict_self: alike on every machine."""


def hide_all() -> None:
    """Let the calls fail as on a kernel that was built without Landlock."""
    rules = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    rules.set_attr(pyseccomp.Attr.CTL_NNP, 0)
    for number in _CALLS:
        rules.add_rule(pyseccomp.ERRNO(errno.ENOSYS), number)
    rules.load()


def answer_version(abi: int) -> None:
    """Let a supervisor answer the question for the version with *abi*."""
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        ours.close()
        _supervise(theirs, abi)
        os._exit(0)
    theirs.close()
    rules = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    rules.set_attr(pyseccomp.Attr.CTL_NNP, 0)
    asked = pyseccomp.Arg(2, pyseccomp.EQ, _VERSION_FLAG)
    rules.add_rule(pyseccomp.NOTIFY, _CALLS[0], asked)
    rules.load()
    # pyseccomp keeps the descriptor to itself.
    fd = ctypes.CDLL("libseccomp.so.2").seccomp_notify_fd(
        ctypes.c_void_p(rules._filter)
    )
    socket.send_fds(ours, [b"x"], [fd])
    os.close(fd)
    ours.close()


def _supervise(channel: socket.socket, abi: int) -> None:
    import fcntl  # noqa: PLC0415 - the supervisor's alone
    import select  # noqa: PLC0415

    # Nothing of the program's may live on in here, such as a pipe that says "ready".
    os.closerange(3, channel.fileno())
    os.closerange(channel.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
    _, (fd, *_), _, _ = socket.recv_fds(channel, 1, 1)
    channel.close()
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    while True:
        ((_, events),) = poll.poll()
        if not events & select.POLLIN:
            return  # nobody is left under the filter
        # struct seccomp_notif and seccomp_notif_resp. Source: linux/seccomp.h.
        request = bytearray(80)
        try:
            fcntl.ioctl(fd, 0xC0502100, request)
            (number,) = struct.unpack_from("=Q", request)
            fcntl.ioctl(fd, 0xC0182101, struct.pack("=QqiI", number, abi, 0, 0))
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EINTR):
                raise


def main() -> None:
    """Put the filter on and become the program."""
    abi = int(sys.argv[1])
    if abi:
        answer_version(abi)
    else:
        hide_all()
    os.execv(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
