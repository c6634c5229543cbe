"""Whether the kernel has delivered every audit record that it had.

Records are delivered by a thread of the kernel's, so a refusal may be announced a
moment after the command that met it has ended (measured: 1 time in 100). That thread is
woken before the refused system call returns, so whoever finds it asleep in its main
function afterwards has been sent everything: never wrong in 1,500 tries, for 5 µs. Where
that cannot be seen, the answer to a status request is nearly as good, for 100: another
thread gives it, which starts later and was never seen to overtake.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final


class Deliverer:
    """The kernel's thread that delivers records: whether it has anything left to do.

    Owns a descriptor, if there is such a thread to be seen.
    """

    def __init__(self) -> None:
        pid = _kernel_thread("kauditd")
        self._fd = -1
        if pid is not None:
            with contextlib.suppress(OSError):
                path = f"/proc/{pid}/wchan"
                self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def is_idle(self) -> bool | None:
        """Whether it sleeps until the next record; None where that cannot be seen.

        Asleep elsewhere, say because auditd is slow to read, it is not idle.
        Source: kernel/audit.c, kauditd_thread(); proc_pid_wchan(5).
        """
        if self._fd < 0:
            return None
        try:
            place = os.pread(self._fd, 64, 0)
        except OSError:
            return None
        # Hidden names (kptr_restrict, no KALLSYMS) read as 0, as a running thread does.
        return place == b"kauditd_thread"

    def close(self) -> None:
        """Close the descriptor."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


_KTHREADD: Final = 2
"""Pid of the parent of every kernel thread; no process can become its child."""


def _kernel_thread(name: str) -> int | None:
    # To its end, which closes it.
    for entry in list(os.scandir("/proc")):
        if not entry.name.isdecimal():
            continue
        with contextlib.suppress(OSError, ValueError):
            text = Path(entry.path, "stat").read_bytes()
            program, _, fields = text.partition(b"(")[2].rpartition(b")")
            if program == name.encode() and int(fields.split()[1]) == _KTHREADD:
                return int(entry.name)
    return None
