"""Process trees that do not want to be found, for tests that end them.

One command makes a process of each kind; every one of them is called by a mark, so
that what is left of them can be counted from outside.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from tests.support.enclosure import describe
from tests.support.stations import sys_python

if TYPE_CHECKING:
    from tests.support.stations import Station

_DAEMONISE: Final = (
    "import os\n"
    "if os.fork(): os._exit(0)\n"
    "os.setsid()\n"
    "if os.fork(): os._exit(0)\n"
    "for fd in range(3): os.close(fd)\n"
    'os.execv("/bin/sleep", ["{mark}-daemonised", "600"])\n'
)

KINDS: Final = (
    "child",
    "setsid",
    "double-fork",
    "nohup",
    "daemonised",
    "deaf",
    "stopped",
)
"""What `escapees` makes; ``deaf`` does not hear SIGTERM."""


def escapees(mark: str) -> str:
    """Return a command that makes one process of each kind and then waits."""
    sleep = f"exec -a {mark}-%s sleep 600"
    daemonise = _DAEMONISE.format(mark=mark)
    return "\n".join(
        (
            f"({sleep % 'child'}) &",
            f"setsid bash -c '{sleep % 'setsid'}' &",
            f"( ( {sleep % 'double-fork'} ) & )",
            f"( nohup bash -c '{sleep % 'nohup'}' >/dev/null 2>&1 & )",
            f"{sys_python()} -I -c '{daemonise}'",
            f"( trap '' TERM; {sleep % 'deaf'} ) &",
            f"( {sleep % 'stopped'} ) & sleep 0.2; kill -STOP $!",
            "echo made",
            "wait",
        )
    )


def hidden(mark: str) -> str:
    """Return a command whose child cuts every tie but its cgroup."""
    inner = f"exec -a {mark}-hidden sleep 600"
    return f"( env -i setsid bash -c '{inner}' </dev/null >/dev/null 2>&1 & )"


def wait_for(station: Station, mark: str, count: int, *, within_s: float = 20) -> None:
    """Wait until *count* processes with the mark are there.

    Raises:
        AssertionError: They are not, in time; says which are.
    """
    deadline = time.monotonic() + within_s
    while len(found := names(station, mark)) != count:
        assert time.monotonic() < deadline, f"{len(found)} of {count}: {found}"
        time.sleep(0.02)


def names(station: Station, mark: str) -> list[str]:
    """Return the names of the processes that carry the mark themselves."""
    return sorted(name for name in named(station) if name.startswith(f"{mark}-"))


def named(station: Station) -> dict[str, int]:
    """Return the daemon's processes by the names they were given."""
    words = (describe(pid).split(" ") for pid in station.daemon.enclosure.pids())
    return {name: int(pid) for pid, name, *_ in words}
