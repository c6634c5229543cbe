"""Kernels with an old Landlock or none: weaker walls are said, missing ones refused.

The kernel under test is this one behind a filter that hides what older ones lack; see
`tests.support.old_kernel`. The commands' behaviour towards the walls that are left is
the real kernel's.
"""

from __future__ import annotations

import dataclasses
import json
import shlex
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import daemon_factory
from tests.support.accounts import as_user
from tests.support.enclosure import describe
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
        stack.callback(end_with_supervisor, daemon)
        return daemon

    with ExitStack() as stack:
        yield start


def end_with_supervisor(daemon: RunningDaemon) -> None:
    """End the daemon and wait for who answered for its kernel: it is not a left-over."""
    daemon.process.terminate()
    daemon.process.wait(30)
    # Without a limit of its own: what never comes costs the test its timeout.
    while any("old_kernel.py" in describe(pid) for pid in daemon.enclosure.pids()):
        time.sleep(0.01)


OPENAT2 = """
import ctypes, os, struct
def openat2(path, flags):
    # Source: linux/openat2.h; the number is the same on every machine.
    how = struct.pack("=QQQ", flags, 0, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(437, -100, path.encode(), how, len(how)) < 0:
        raise OSError(ctypes.get_errno(), "openat2")
"""


def attempt(
    daemon: RunningDaemon, command: str, *, cwd: Path | None = None
) -> dict[str, Any]:
    place = cwd or daemon.make_workspace()
    return daemon.run(command, cwd=place, mode="workspace-write")


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


def test_without_landlock_and_bubblewrap_nothing_runs(
    on_kernel: Callable[..., RunningDaemon], identity: Account
):
    daemon = on_kernel(NONE, "landlock", caller=identity)
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


CUTS = (
    "os.truncate(path, 0)",
    "os.open(path, os.O_RDONLY | os.O_TRUNC)",
    "os.open(path, 3 | os.O_TRUNC)",
    "os.open(path, os.O_WRONLY | os.O_TRUNC)",
    "os.ftruncate(os.open(path, os.O_WRONLY), 0)",
    "openat2(path, os.O_RDONLY | os.O_TRUNC)",
)
"""Ways to empty a file."""


@pytest.mark.parametrize("abi", [1, DEBIAN_12])
def test_a_file_outside_is_not_emptied_where_landlock_knows_no_truncation(
    on_kernel: Callable[..., RunningDaemon], abi: int
):
    daemon = on_kernel(abi, "landlock")
    place, outside = daemon.make_workspace(), daemon.make_workspace("outside")
    precious, own = outside / "precious", place / "own"
    write = ["bash", "-c", f"echo precious >{precious}; echo own >{own}"]
    for cut in CUTS:
        script = f"{OPENAT2}path = {str(precious)!r}; {cut}"
        program = ["/usr/bin/python3", "-c", script]
        as_user(daemon.caller, write)
        as_user(daemon.caller, program)
        assert precious.read_text() == "", f"{cut} empties no file"
        as_user(daemon.caller, write)
        result = attempt(daemon, shlex.join(program), cwd=place)
        assert precious.read_text() == "precious\n", cut
        assert result["exit_code"] != 0, cut
    # What is opened for writing can be cut off as ever.
    done = attempt(daemon, "truncate -s 1 own; echo x >>own; : >own", cwd=place)
    assert (done["exit_code"], own.read_text()) == (0, ""), done
