"""Commands live in cgroups of their own: limits, out of memory, account, removal."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bashd.core.policy import Limits
from bashd.daemon.cgroup import Group, LegacyGroup, write
from bashd.daemon.cgroup_places import find_hierarchies
from tests.support.callers import client
from tests.support.stations import (
    ROOT_BWRAP,
    ROOT_LANDLOCK,
    SERVED_BWRAP,
    SERVED_LANDLOCK,
    UNDER_BWRAP,
    UNDER_LANDLOCK,
    USER_BWRAP,
    USER_LANDLOCK,
    WORKSPACE_WRITE,
    Station,
    on,
    sys_python,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import DaemonFactory
    from tests.support.accounts import Account

ROOTS = (ROOT_BWRAP, ROOT_LANDLOCK, SERVED_BWRAP, SERVED_LANDLOCK)
USERS = (USER_BWRAP, USER_LANDLOCK)
PIDS = 64
MEMORY_BYTES = 96 * 1024 * 1024


@pytest.fixture
def tight(
    request: pytest.FixtureRequest,
    open_station: Callable[..., Station],
    policy_folder: Callable[..., dict[str, str]],
) -> Station:
    """A station whose session has narrow limits; parametrize it indirectly."""
    environ = policy_folder(
        tight=f'mode = "workspace-write"\n[limits]\npids = {PIDS}\n'
        f"memory_bytes = {MEMORY_BYTES}\n"
    )
    return open_station(request.param, environ=environ, policy="tight")


def groups_of(station: Station) -> set[str]:
    """Return the daemon's cgroups of single commands."""
    names = (Path(name) for name in station.daemon.enclosure.cgroups())
    return {str(name) for name in names if name.name.isdecimal()}


@on(*ROOTS)
def test_each_command_is_alone_in_its_cgroup(station: Station):
    show = "grep ^0:: /proc/self/cgroup; (grep ^0:: /proc/self/cgroup)"
    first, second = (station.text(show).split() for _ in range(2))
    assert first[0] == first[1], "a child is in the group of its parent"
    assert first[0] != second[0]
    assert "/bashd/" in first[0]


@on(*ROOTS)
def test_group_goes_with_its_command_and_cell_group_with_the_session(station: Station):
    other = station.open()
    name = other.run("grep ^0:: /proc/self/cgroup").stdout.text.strip().split(":")[-1]
    cell = str(Path(name).parent.relative_to(Path(name).parents[2]))
    deadline = time.monotonic() + 10
    while any(name.endswith(known) for known in groups_of(station)):
        assert time.monotonic() < deadline, "the group is still there"
        time.sleep(0.05)
    assert cell in station.daemon.enclosure.cgroups()
    other.sessions.close(other.session.session_id)
    assert cell not in station.daemon.enclosure.cgroups()


@on(*ROOTS)
def test_background_child_keeps_its_group_and_is_found_in_it(station: Station):
    result = station.run("sleep 600 & grep ^0:: /proc/self/cgroup")
    name = result.stdout.text.strip().split(":")[-1]
    time.sleep(2.5)
    assert any(name.endswith(known) for known in groups_of(station))
    assert len(station.processes("sleep 600")) == 1


@on(*UNDER_BWRAP, *UNDER_LANDLOCK)
def test_command_cannot_leave_its_cgroup(station: Station):
    attempt = (
        "for f in $(find /sys/fs/cgroup -name cgroup.procs 2>/dev/null); do"
        " (echo $BASHPID > $f) 2>/dev/null && echo moved to $f; done; true"
    )
    assert station.text(attempt) == ""


@pytest.mark.parametrize("tight", ROOTS + USERS, indirect=True, ids="-".join)
def test_fork_bomb_stays_within_the_pids_limit_and_bothers_nobody(tight: Station):
    bomb = "while :; do sleep 600 & done 2>/dev/null"
    if tight.caller.is_root and "pids" not in controllers():
        pytest.skip("uid 0 is bound by the pids controller only, and there is none")
    task = tight.client.start(bomb)
    neighbour = tight.open()
    deadline = time.monotonic() + 20
    while len(tight.processes("sleep 600")) < PIDS // 2:
        assert time.monotonic() < deadline, "the bomb does not go off"
        time.sleep(0.05)
    began = time.monotonic()
    assert neighbour.run("echo fine").stdout.text == "fine\n"
    assert time.monotonic() - began < 1 + 2, "a cold cell and a second"
    began = time.monotonic()
    assert neighbour.run("echo fine").stdout.text == "fine\n"
    assert time.monotonic() - began < 1
    assert len(tight.processes("sleep 600")) <= PIDS + 70
    assert tight.client.kill(task.task_id)
    tight.client.wait(task.task_id)
    deadline = time.monotonic() + 10
    while tight.processes("sleep 600"):
        assert time.monotonic() < deadline, "the bomb outlives its kill"
        time.sleep(0.02)
    assert tight.client.run("echo recovered").stdout.text == "recovered\n"


@pytest.mark.parametrize("tight", ROOTS + USERS, indirect=True, ids="-".join)
def test_foreground_fork_bomb_ends_at_its_timeout(tight: Station):
    if tight.caller.is_root and "pids" not in controllers():
        pytest.skip("uid 0 is bound by the pids controller only, and there is none")
    result = tight.client.run(":(){ :|:& };: 2>/dev/null; sleep 60", timeout_ms=1500)
    assert result.timed_out
    deadline = time.monotonic() + 10
    while tight.client.run("echo recovered").stdout.text != "recovered\n":
        assert time.monotonic() < deadline
    # On a crowded machine the last of the killed are still there for a moment.
    while len(tight.daemon.enclosure.pids()) >= PIDS:
        assert time.monotonic() < deadline


@pytest.mark.parametrize("tight", ROOTS, indirect=True, ids="-".join)
def test_command_beyond_its_memory_is_killed_and_that_is_said(tight: Station):
    if "memory" not in controllers():
        pytest.skip("no cgroup here keeps a memory limit")
    eat = f"{sys_python()} -I -c 'x = b\"x\" * {4 * MEMORY_BYTES}; print(len(x))'"
    result = tight.client.run(eat)
    assert (result.signal, result.stdout.text) == ("SIGKILL", ""), result
    assert result.usage.oom_killed
    assert tight.client.run("tail /dev/zero; echo $?").stdout.text == "137\n"
    task = tight.client.start(eat)
    info = tight.client.wait(task.task_id)
    assert str(info.status) == "killed"
    assert info.oom_killed
    after = tight.client.run("echo alive")
    assert after.stdout.text == "alive\n"
    assert not after.usage.oom_killed


@pytest.mark.parametrize("tight", USERS, indirect=True, ids="-".join)
def test_without_a_cgroup_one_process_is_bounded_and_says_so_itself(tight: Station):
    eat = f"{sys_python()} -I -c 'x = b\"x\" * {4 * MEMORY_BYTES}'"
    result = tight.client.run(eat)
    assert result.exit_code == 1
    assert "MemoryError" in result.stderr.text
    assert not result.usage.oom_killed


@on(*ROOTS)
def test_cpu_time_of_children_nobody_waited_for_is_in_the_account(station: Station):
    # It ends itself after a second of CPU time, however long that takes.
    busy = "(ulimit -t 1; echo $BASHPID > pid; while :; do :; done)"
    wait = "while kill -0 $(cat pid 2>/dev/null || echo $$); do sleep 0.05; done"
    result = station.run(f"( {busy} & ); {wait} 2>/dev/null")
    assert result.usage.cpu_ms >= 900, result.usage


def test_user_with_a_delegated_cgroup_has_exact_kills(
    make_daemon: DaemonFactory, ordinary_user: Account, bwrap_for_users: None
):
    if os.geteuid() != 0:
        pytest.skip("needs root to delegate a cgroup")
    daemon = make_daemon(account=ordinary_user, runner="bwrap", delegated=True)
    workspace = daemon.make_workspace()
    with client(daemon, cwd=workspace) as caller:
        name = f"hid-{secrets.token_hex(4)}"
        inner = f"exec -a {name} sleep 600"
        task = caller.start(
            f"( env -i setsid bash -c '{inner}' </dev/null >/dev/null 2>&1 & );"
            "grep ^0:: /proc/self/cgroup; sleep 600",
            mode=WORKSPACE_WRITE,
        )
        deadline = time.monotonic() + 10
        while (
            read := caller.read_output(task.task_id)
        ) and "/bashd/" not in read.delta:
            assert time.monotonic() < deadline, "the task is not in a cgroup"
            time.sleep(0.05)
        caller.kill(task.task_id)
        caller.wait(task.task_id)
        while name in _command_lines(daemon.enclosure.pids()):
            assert time.monotonic() < deadline, "what hid outlives the kill"
            time.sleep(0.05)


def _command_lines(pids: frozenset[int]) -> str:
    found: list[str] = []
    for pid in pids:
        path = Path(f"/proc/{pid}/cmdline")
        if path.exists():
            found.append(path.read_bytes().decode(errors="replace"))
    return "\n".join(found)


def controllers() -> frozenset[str]:
    """Return the controllers that a daemon of this account could use here."""
    return frozenset[str]().union(*(h.controllers for h in find_hierarchies()))


@pytest.fixture
def own_group() -> Iterator[Path]:
    """A fresh place for groups of version 2."""
    unified = [h for h in find_hierarchies() if h.unified]
    if not unified:
        pytest.skip("no cgroup of version 2 can be made here")
    folder = unified[0].base / f"bashd-test-{secrets.token_hex(4)}"
    folder.mkdir()
    yield folder
    Group(str(folder), frozenset()).kill()
    deadline = time.monotonic() + 10
    while True:
        for child in folder.iterdir():
            if child.is_dir():
                Group(str(child), frozenset()).remove()
        try:
            folder.rmdir()
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        else:
            return


_BREEDER = """
import os, sys, time
for _ in range(20):
    if not os.fork():
        while True:
            if not os.fork():
                time.sleep(0.002); os._exit(0)
            os.wait()
print("bred", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("way", ["kill", "_kill_frozen"])
def test_group_that_forks_all_the_time_is_gone_at_once(own_group: Path, way: str):
    group = Group(f"{own_group}/7", frozenset())
    os.close(group.make(Limits(), None))
    move = f'echo $$ > {group.path}/cgroup.procs && exec "$@"'
    with subprocess.Popen(
        ["sh", "-c", move, "sh", sys.executable, "-c", _BREEDER],
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"bred\n"
        assert len(group.pids()) > 20
        assert getattr(group, way)()
        deadline = time.monotonic() + 10
        while group.pids():
            assert time.monotonic() < deadline, "it outlives the kill"
            time.sleep(0.01)
    assert group.remove()


def test_kill_of_a_group_that_is_gone_is_done(own_group: Path):
    group = Group(f"{own_group}/8", frozenset())
    assert group.kill()
    assert group.remove()
    assert (group.cpu_us(), group.peak_bytes(), group.oom_kills()) == (0, 0, 0)


def test_group_that_cannot_be_limited_is_not_left_behind(own_group: Path):
    # The file of a controller that is not enabled does not exist.
    group = Group(f"{own_group}/9", frozenset({"memory"}))
    if (own_group / "memory.max").exists():
        pytest.skip("the controller is enabled here")
    with pytest.raises(FileNotFoundError):
        group.make(Limits(memory_bytes=1), None)
    assert not group.path.exists()


def test_legacy_groups_take_their_limits():
    legacy = [h for h in find_hierarchies() if not h.unified]
    if not legacy:
        pytest.skip("no hierarchy of version 1 can be used here")
    for hierarchy in legacy:
        group = LegacyGroup(
            hierarchy.base / f"bashd-test-{secrets.token_hex(4)}", hierarchy.kind
        )
        group.make(Limits(pids=5, memory_bytes=1 << 20), 3)
        try:
            name = "pids.max" if hierarchy.kind == "pids" else "memory.limit_in_bytes"
            expected = {"pids": "8", "memory": str(1 << 20)}[hierarchy.kind]
            assert (group.path / name).read_text().strip() == expected
            assert group.oom_kills() == 0
        finally:
            group.path.rmdir()


def test_write_names_the_file_that_refused(tmp_path: Path):
    with pytest.raises(FileNotFoundError) as caught:
        write(tmp_path / "pids.max", "1")
    assert "pids.max" in str(caught.value)
