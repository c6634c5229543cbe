"""``bashd doctor --verify``, as root and as an ordinary user: the walls of this machine.

The battery is product code, and this is where it is run against the real thing: nothing
gets through on bubblewrap's rung, and on Landlock's exactly what that rung says.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.accounts import Account, as_user
from tests.support.stage import Install

LANDLOCKS_OWN_GAPS = {"chmod_outside", "touch_outside", "write_shared_memory"}
PROVED_BY_ROOT_ALONE = {
    "open_knob",
    "make_device",
    "mount_something",
    "use_packet_sockets",
}
NOT_EVERYWHERE = {
    *("use_crypto_sockets", "use_userfaultfd", "use_bpf", "use_perf", "use_io_uring"),
    *("take_descriptor", "trace_outside", "read_memory", "procfs_outside"),
    "keep_privileges",
}
"""What a kernel may lack or forbid to all, so that there is nothing to prove."""


@pytest.fixture
def verified(
    identity: Account, install: Install, bwrap_for_users: None
) -> dict[str, Any]:
    del bwrap_for_users
    argv = [install.python, "-P", "-m", "bashd", "doctor", "--verify", "--json"]
    done = as_user(identity, argv, timeout_s=55)
    assert done.returncode in (0, 1, 3), done.stderr
    report = json.loads(done.stdout)
    assert report["exit_status"] == done.returncode
    assert not [p for p in identity.home.iterdir() if p.name.startswith(".bashd-ver")]
    assert not list(Path("/tmp").glob("bashd-verify-*"))
    assert not list(Path("/dev/shm").glob("bashd-verify-*"))
    return report


@pytest.mark.slow
def test_nothing_gets_through_that_must_not(
    verified: dict[str, Any], identity: Account
):
    rungs = verified["rungs"]
    outcomes = {
        rung: {
            tried["name"]: tried["outcome"]
            for wall in found["walls"]
            for tried in wall["attempts"]
        }
        for rung, found in rungs.items()
    }
    assert rungs["bwrap"]["enforcement"] == "full"
    assert rungs["landlock"]["enforcement"] == "partial"
    for rung, gaps in (("bwrap", set()), ("landlock", LANDLOCKS_OWN_GAPS)):
        got = outcomes[rung]
        assert {n for n, o in got.items() if o == "broken"} == set()
        assert {n for n, o in got.items() if o == "gap"} == gaps
        # Whatever else was tried did work without walls, and was stopped behind them.
        unproved = {n for n, o in got.items() if o == "not tried"}
        allowed = NOT_EVERYWHERE | (set() if identity.is_root else PROVED_BY_ROOT_ALONE)
        assert unproved <= allowed
    assert verified["exit_status"] == 0
