"""The system call filter: what no developer's command needs is refused, by both runners.

Refused is EPERM (ENOSYS for clone3, which glibc falls back from). Permitted is anything
else: most calls are given arguments that cannot be right, and say so.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.stations import CONFINING, FULL_ACCESS, ROOT_BWRAP, Station, on

CALLS = Path(__file__).parent / "inside" / "calls.py"
SHARED_WITH_THE_HOST = {"unix socket", "shmget", "mq_open"}
NEEDED = {
    *("socketpair", "inet socket", "inet6 socket", "fork"),
    *("own priority", "own limits"),
}


def refused(outcomes: dict[str, str]) -> set[str]:
    """Return the calls that the filter stopped."""
    return {
        name
        for name, outcome in outcomes.items()
        if outcome == ("ENOSYS" if name == "clone3" else "EPERM")
    }


@on(ROOT_BWRAP)
def test_root_may_make_almost_all_of_them_without_walls(station: Station):
    # TIOCSTI and the socket families depend on how the kernel was built.
    free = refused(station.program(CALLS, mode=FULL_ACCESS))
    assert free <= {"TIOCSTI", "packet socket", "vsock", "alg socket"}, free


@pytest.mark.parametrize("mode", CONFINING)
def test_what_nobody_needs_is_refused(station: Station, mode: str):
    outcomes = station.program(CALLS, mode=mode)
    shared = set() if station.under_bwrap else SHARED_WITH_THE_HOST
    wanted = set(outcomes) - NEEDED - SHARED_WITH_THE_HOST | shared
    assert refused(outcomes) == wanted
    assert {outcomes[name] for name in NEEDED} == {"done"}


def test_nothing_is_filtered_without_walls(station: Station):
    seen = station.text(
        "grep -E '^(Seccomp|NoNewPrivs):' /proc/self/status", FULL_ACCESS
    )
    assert seen.split() == ["NoNewPrivs:", "0", "Seccomp:", "0"]
