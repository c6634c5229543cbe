"""The first command on a machine where nothing was set up: the real daemon, started."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.accounts import argv_as

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.accounts import Account
    from tests.support.stage import Install


@pytest.fixture
def bashd(
    ordinary_user: Account, install: Install
) -> Callable[..., subprocess.Popen[str]]:
    """Start ``bashd …`` as an ordinary user who has never used it."""
    python = [install.python, "-m", "bashd"]

    def start(*words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            argv_as(ordinary_user, [*python, *words]),
            env=ordinary_user.environment() | {"MY_TOKEN": "secret"},
            cwd=ordinary_user.home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


@pytest.mark.slow
def test_first_commands_at_the_same_instant_start_one_daemon_which_holds_no_secret(
    bashd: Callable[..., subprocess.Popen[str]],
) -> None:
    # Full access: whether this user can be confined here is another test's question.
    clients = [
        bashd("run", "--mode", "danger-full-access", "--", f"echo {number}")
        for number in range(3)
    ]
    outcomes = [client.communicate(timeout=50) for client in clients]
    assert [out for out, _ in outcomes] == ["0\n", "1\n", "2\n"], outcomes
    pids = {json.loads(bashd("status", "--json").communicate()[0])["pid"] for _ in "ab"}
    assert len(pids) == 1
    pid = pids.pop()
    if os.geteuid() == 0:
        assert b"secret" not in Path(f"/proc/{pid}/environ").read_bytes()
    process = os.pidfd_open(pid)
    signal.pidfd_send_signal(process, signal.SIGTERM)
    assert select.select([process], [], [], 20)[0], "the daemon does not end"
    os.close(process)
    out, err = bashd("status").communicate()
    assert (out, "no daemon is running" in err) == ("", True)
