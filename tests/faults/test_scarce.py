"""Disk, descriptors, processes and memory run out; the daemon answers and recovers."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bashd.core.errors import LimitError, SandboxUnavailableError
from tests.support.accounts import as_user
from tests.support.callers import client
from tests.support.stations import sys_python
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from bashd.client import SyncClient
    from tests.conftest import DaemonFactory
    from tests.support.accounts import Account
    from tests.support.daemons import RunningDaemon

DISK_MIB = 12
DESCRIPTORS = 640
SMALL_DISK = (
    # A file system of its own in a mount namespace of its own; the daemon's state.
    f"mount -t tmpfs -o size={DISK_MIB}m,mode=700,uid=$1,gid=$2 none state"
    ' && shift 2 && exec "$@"'
)


@pytest.fixture
def cramped(
    request: pytest.FixtureRequest, make_daemon: DaemonFactory, identity: Account
) -> RunningDaemon:
    """A daemon whose state folder is on a disk of a few mebibytes."""
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a small disk")
    runner = getattr(request, "param", "bwrap")
    if runner == "bwrap" and not identity.is_root:
        request.getfixturevalue("bwrap_for_users")
    return make_daemon(
        account=identity,
        runner=runner,
        wrap=[
            *("unshare", "--mount", "--propagation", "private", "--"),
            *("sh", "-c", SMALL_DISK, "sh", str(identity.uid), str(identity.gid)),
        ],
    )


both_runners = pytest.mark.parametrize("cramped", ["bwrap", "landlock"], indirect=True)


def answers_fast(caller: SyncClient) -> None:
    """Check that a warm session has its command back within a second."""
    caller.run("true")
    began = time.monotonic()
    assert caller.run("echo fine").stdout.text == "fine\n"
    assert time.monotonic() - began < 1


@both_runners
def test_task_that_fills_the_disk_goes_on_and_disturbs_nobody(cramped: RunningDaemon):
    daemon = cramped
    workspace = daemon.make_workspace()
    with (
        client(daemon, cwd=workspace) as other,
        client(daemon, cwd=workspace) as caller,
    ):
        other.run("true")
        mib = 3 * DISK_MIB
        task = caller.start(f"head -c {mib}M /dev/zero | tr '\\0' x; echo; echo END")
        answers_fast(other)
        info = caller.wait(task.task_id)
        assert (str(info.status), info.exit_code) == ("completed", 0)
        assert info.stdout_bytes == mib * 1024 * 1024 + len("\nEND\n")
        read = caller.read_output(task.task_id)
        assert read is not None
        assert read.lossy
        assert read.delta.endswith("x\nEND\n")
        assert read.spill_paths == ()
        answers_fast(other)


@both_runners
def test_full_disk_is_survived_and_space_is_used_again(cramped: RunningDaemon):
    daemon = cramped
    workspace = daemon.make_workspace()
    fill = f"{daemon.state_dir}/fill"
    with (
        client(daemon, cwd=workspace, mode="danger-full-access") as wide,
        client(daemon, cwd=workspace) as caller,
    ):
        caller.run("true")
        wide.run(f"head -c {2 * DISK_MIB}M /dev/zero > {fill}; true")
        _check_on_full_disk(caller)
        answers_fast(wide)
        assert wide.run(f"rm {fill}").exit_code == 0
        # By itself, and at once.
        task = caller.start("seq 1 200000")
        caller.wait(task.task_id)
        read = caller.read_output(task.task_id)
        assert read is not None
        assert len(read.spill_paths) == 1


def _check_on_full_disk(caller: SyncClient) -> None:
    task = caller.start("seq 1 100000")
    info = caller.wait(task.task_id)
    assert (str(info.status), info.exit_code) == ("completed", 0)
    read = caller.read_output(task.task_id)
    assert read is not None
    assert read.delta.endswith("100000\n")
    result = caller.run("seq 1 100000")
    assert result.exit_code == 0
    assert result.stdout.text.endswith("100000\n")


@both_runners
def test_runner_that_could_not_be_tried_is_tried_again(cramped: RunningDaemon):
    daemon = cramped
    workspace = daemon.make_workspace()
    fill = f"{daemon.state_dir}/fill"
    with client(daemon, cwd=workspace, mode="danger-full-access") as wide:
        wide.run(f"head -c {2 * DISK_MIB}M /dev/zero > {fill}; true")
        with pytest.raises(SandboxUnavailableError, match="is full"):
            wide.run("true", mode="read-only")
        assert wide.run(f"rm {fill}").exit_code == 0
        assert wide.run("true", mode="read-only").exit_code == 0


@both_runners
def test_daemon_killed_on_a_full_disk_comes_back(cramped: RunningDaemon):
    # Its mount namespace goes with it, so the successor has a disk of its own; what
    # counts is that keepers and records of the dead one do no harm.
    daemon = cramped
    workspace = daemon.make_workspace()
    with client(daemon, cwd=workspace, mode="danger-full-access") as wide:
        wide.run(f"head -c {2 * DISK_MIB}M /dev/zero > {daemon.state_dir}/fill; true")
        wide.start("sleep 600")
    daemon.kill()
    daemon.start_again()
    assert daemon.run("echo fine", cwd=workspace)["stdout"]["text"] == "fine\n"


@pytest.fixture(params=["bwrap", "landlock"])
def few_descriptors(
    request: pytest.FixtureRequest, make_daemon: DaemonFactory, identity: Account
) -> RunningDaemon:
    """A daemon that may open a few descriptors only."""
    if request.param == "bwrap" and not identity.is_root:
        request.getfixturevalue("bwrap_for_users")
    return make_daemon(
        account=identity,
        runner=request.param,
        wrap=["prlimit", f"--nofile={DESCRIPTORS}:{DESCRIPTORS}", "--"],
    )


def test_descriptors_run_out_and_running_tasks_go_on(few_descriptors: RunningDaemon):
    daemon = few_descriptors
    workspace = daemon.make_workspace()
    with (
        client(daemon, cwd=workspace) as caller,
        client(daemon, cwd=workspace) as other,
    ):
        other.run("true")
        first = caller.start("while :; do echo x; sleep 0.1; done")
        refused = _start_until_refused(caller)
        assert "descriptors" in refused
        info = caller.get(first.task_id)
        assert info is not None
        assert str(info.status) == "running", "the first one was lost"
        answered = other.status()
        assert answered.tasks > 5
        tasks = json.loads(daemon.cli("ps", "--json").stdout)["tasks"]
        for task in tasks:
            assert caller.kill(task["task_id"])
        for task in tasks:
            caller.wait(task["task_id"])
        eventually(lambda: _runs(other), "recovery", 10)
        answers_fast(other)


def _start_until_refused(caller: SyncClient) -> str:
    for _ in range(DESCRIPTORS):
        try:
            caller.start("sleep 600")
        except LimitError as error:
            return error.message
    return "never refused"


def _runs(caller: SyncClient) -> bool:
    try:
        return caller.run("echo fine").stdout.text == "fine\n"
    except LimitError:
        return False


_CONNECT = """
import contextlib, resource, socket, sys
path, count = sys.argv[1], int(sys.argv[2])
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
with contextlib.ExitStack() as stack:
    for _ in range(count):
        sock = stack.enter_context(socket.socket(socket.AF_UNIX))
        sock.settimeout(5)
        sock.connect(path)
print(count)
"""


def test_connections_beyond_the_descriptors_wait_and_are_served(
    few_descriptors: RunningDaemon,
):
    daemon = few_descriptors
    workspace = daemon.make_workspace()
    daemon.run("true", cwd=workspace)
    count = DESCRIPTORS + 20
    connected = as_user(
        daemon.caller, [sys_python(), "-c", _CONNECT, str(daemon.socket), str(count)]
    )
    assert connected.stdout == f"{count}\n", connected.stderr

    def answered() -> bool:
        # Until the daemon has seen that they are gone, one more may be one too many.
        answer = daemon.run("echo fine", cwd=workspace)
        return answer.get("stdout", {}).get("text") == "fine\n"

    eventually(answered, "an answer to the next one", 10)


def latency_s(caller: SyncClient) -> float:
    began = time.monotonic()
    caller.run("true")
    return time.monotonic() - began


@pytest.mark.parametrize(
    ("greedy", "count"),
    [
        pytest.param("yes", 12, id="stdout"),
        pytest.param("yes >&2", 12, id="stderr"),
        pytest.param("while :; do echo a; echo b >&2; done", 12, id="in-turns"),
        pytest.param("while :; do :; done", 64, id="cpu"),
        pytest.param("while :; do (:); done", 12, id="forks"),
    ],
)
def test_greedy_tasks_leave_the_daemon_to_others(
    daemon_matrix: RunningDaemon, greedy: str, count: int
):
    daemon = daemon_matrix
    workspace = daemon.make_workspace()
    with (
        client(daemon, cwd=workspace) as other,
        client(daemon, cwd=workspace) as caller,
    ):
        other.run("true")
        tasks = [caller.start(greedy) for _ in range(count)]
        memory = _rss_mib(daemon.pid)
        time.sleep(2)
        latencies = sorted(latency_s(other) for _ in range(9))
        assert latencies[len(latencies) // 2] < 1, latencies
        assert _rss_mib(daemon.pid) - memory < 60
        for task in tasks:
            caller.kill(task.task_id)
        for task in tasks:
            caller.wait(task.task_id)


def _rss_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
