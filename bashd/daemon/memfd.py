"""Files without a name that nobody can change any more, for processes of a cell."""

from __future__ import annotations

import errno
import fcntl
import os
from typing import Final

_SEALS: Final = (
    fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
)
_MFD_EXEC: Final = 0x10  # linux/memfd.h, Linux 6.3
_EXECUTE_ONLY: Final = 0o111


def sealed_memfd(name: str, content: bytes) -> int:
    """Return a descriptor to *content*."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    _fill(fd, content)
    return fd


def sealed_program(name: str, content: bytes) -> int:
    """Return a descriptor to a program that may be executed and not be read.

    What runs it is not dumpable from its first instruction on. Source: execve(2),
    proc_pid(5), ``suid_dumpable``.

    Raises:
        OSError: The machine forbids it: sysctl ``vm.memfd_noexec`` is 2.
    """
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        fd = os.memfd_create(name, flags | _MFD_EXEC)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        # An older kernel, where every such file may be executed.
        fd = os.memfd_create(name, flags)
    os.fchmod(fd, _EXECUTE_ONLY)
    _fill(fd, content)
    return fd


def _fill(fd: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
