"""What the daemon does to its own process before it serves anybody.

Commands run as the daemon's uid (a user daemon's always do), so what they could read
or take from its process must be nothing: no foreign environment, no core dump, no
ptrace, no loose file mode.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bashd.launcher.kernel import set_dumpable

if TYPE_CHECKING:
    from collections.abc import MutableMapping

_KEPT: Final = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ"),
        *("TMPDIR", "BASHD_HOME"),
    }
)
_KEPT_PREFIXES: Final = ("LC_", "XDG_")


def harden(environ: MutableMapping[bytes, bytes] = os.environb) -> int:
    """Forget the environment, close the process to its own uid, lift the fd limit.

    Returns:
        The limit on descriptors as it was: what commands start with.
    """
    os.umask(0o077)
    forget_environment(environ)
    # Last: it closes /proc/self to this process as well.
    set_dumpable(False)
    return raise_fd_limit()


def is_kept(name: str) -> bool:
    """Whether the daemon needs a variable: where it is and what it speaks."""
    return name in _KEPT or name.startswith(_KEPT_PREFIXES)


def forget_environment(environ: MutableMapping[bytes, bytes]) -> None:
    """Drop every variable the daemon does not need, from the start of the process too.

    Removing a variable leaves its text where the kernel put it at exec, and that is
    what ``/proc/PID/environ`` shows; so the text is overwritten.
    """
    for name in [name for name in environ if not is_kept(os.fsdecode(name))]:
        del environ[name]
    start, end = _environment_range()
    with Path("/proc/self/mem").open("r+b", buffering=0) as memory:
        memory.seek(start)
        block = memory.read(end - start)
        memory.seek(start)
        memory.write(_blanked(block))


def _environment_range() -> tuple[int, int]:
    """Return where the initial environment lies. Source: proc(5), fields 50 and 51."""
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    return int(fields[47]), int(fields[48])


def _blanked(block: bytes) -> bytes:
    entries = block.split(b"\0")
    return b"\0".join(
        entry if is_kept(os.fsdecode(entry.partition(b"=")[0])) else bytes(len(entry))
        for entry in entries
    )


def raise_fd_limit() -> int:
    """Use what the hard limit allows: each running command takes several descriptors.

    Returns:
        The soft limit before.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft


def lower_fd_limit(soft: int) -> None:
    """Go back to *soft*, for a program that this process becomes."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
