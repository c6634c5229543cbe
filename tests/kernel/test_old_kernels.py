"""Kernels with an old Landlock or none: weaker walls are said, missing ones refused.

The kernel under test is this one behind a filter that hides what older ones lack; see
`tests.support.old_kernel`. The commands' behaviour towards the walls that are left is
the real kernel's.
"""

from __future__ import annotations

import dataclasses
import json
import shlex
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import daemon_factory
from tests.support.stage import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.accounts import Account
    from tests.support.daemons import RunningDaemon
    from tests.support.stage import Install

pytestmark = pytest.mark.slow

NONE = 0
DEBIAN_12 = 2
"""Linux 6.1: no truncation before ABI 3, no ports before 4, no scopes before 6."""


@pytest.fixture
def on_kernel(
    reachable_tmp: Path,
    install: Install,
    root_account: Account,
    ordinary_user: Account,
    tmp_path: Path,
) -> Iterator[Callable[..., RunningDaemon]]:
    """Start a daemon of root's on a kernel with that ABI of Landlock."""

    def start(abi: int, runner: str, *, caller: Account | None = None) -> RunningDaemon:
        wrapper = tmp_path / f"python-{abi}"
        filtered = (
            install.python,
            REPOSITORY / "tests/support/old_kernel.py",
            str(abi),
        )
        words = shlex.join(map(str, (*filtered, install.python)))
        wrapper.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        wrapper.chmod(0o755)
        old = dataclasses.replace(install, python=str(wrapper))
        with_old = stack.enter_context(daemon_factory(reachable_tmp, old))
        daemon = with_old(
            account=root_account, caller=caller or ordinary_user, runner=runner
        )
        daemon.install = install  # only the daemon lives on the old kernel
        return daemon

    with ExitStack() as stack:
        yield start


def attempt(daemon: RunningDaemon, command: str) -> dict[str, Any]:
    return daemon.run(command, cwd=daemon.make_workspace(), mode="workspace-write")


@pytest.mark.parametrize("abi", [NONE, 1, DEBIAN_12])
def test_under_bubblewrap_the_mounts_hold_and_the_rest_is_said(
    on_kernel: Callable[..., RunningDaemon], abi: int
):
    daemon = on_kernel(abi, "bwrap")
    result = attempt(daemon, "echo in >file && cat file; echo out >/etc/bashd-canary")
    assert result["stdout"]["text"] == "in\n"
    assert result["exit_code"] != 0
    assert result["sandbox"]["denied"] is True
    assert result["sandbox"]["enforcement"] == "partial"


@pytest.mark.parametrize("runner", ["landlock"])
def test_without_landlock_and_bubblewrap_nothing_runs(
    on_kernel: Callable[..., RunningDaemon], runner: str
):
    daemon = on_kernel(NONE, runner)
    place = daemon.make_workspace()
    done = daemon.cli(
        *("run", "--json", "--mode", "read-only", "--cwd", str(place)),
        *("--", "touch reached"),
    )
    assert done.returncode == 125
    assert json.loads(done.stdout)["error"]["code"] == "SANDBOX_UNAVAILABLE"
    assert not (place / "reached").exists()


def test_root_is_not_run_in_a_cell_without_landlock(
    on_kernel: Callable[..., RunningDaemon], root_account: Account
):
    daemon = on_kernel(NONE, "bwrap", caller=root_account)
    place = daemon.make_workspace()
    done = daemon.cli(
        *("run", "--json", "--mode", "workspace-write", "--cwd", str(place)),
        *("--", "touch reached"),
    )
    assert done.returncode == 125, done.stdout
    assert json.loads(done.stdout)["error"]["code"] == "SANDBOX_UNAVAILABLE"
    assert not (place / "reached").exists()


def test_an_old_landlock_alone_says_what_it_does_not_hold(
    on_kernel: Callable[..., RunningDaemon],
):
    daemon = on_kernel(DEBIAN_12, "landlock")
    place = daemon.make_workspace()
    done = daemon.cli(
        *("run", "--json", "--mode", "workspace-write", "--cwd", str(place)),
        *("--", "echo in >file && cat file; echo out >/etc/bashd-canary"),
    )
    answer = json.loads(done.stdout)
    assert "error" not in answer, answer
    assert answer["stdout"]["text"] == "in\n"
    assert answer["sandbox"]["enforcement"] == "partial"
    assert answer["exit_code"] != 0
