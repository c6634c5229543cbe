"""M. Beyond the original, over a real daemon."""

from __future__ import annotations

import dataclasses
import signal
import subprocess
import threading
import time
from typing import TYPE_CHECKING

import pytest

from tests.support.accounts import Account
from tests.support.stations import (
    CONFINING,
    FULL_ACCESS,
    READ_ONLY,
    SERVED_BWRAP,
    SERVED_LANDLOCK,
    UNDER_LANDLOCK,
    USER_BWRAP,
    USER_LANDLOCK,
    WORKSPACE_WRITE,
    Station,
    on,
    station_on,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bashd.core.model import RunResult
    from tests.conftest import DaemonFactory


@dataclasses.dataclass(frozen=True, slots=True)
class WithToken(Account):
    """An account whose daemon is started with a credential in its environment."""

    def environment(self) -> dict[str, str]:
        return {**Account.environment(self), "A_TOKEN": "canary-in-the-daemon"}


@pytest.mark.parametrize("runner", ["bwrap", "landlock"])
@pytest.mark.parametrize("who", ["root", "user", "served"])
def test_c220_the_daemons_own_environment_tells_nothing(
    make_daemon: DaemonFactory,
    ordinary_user: Account,
    request: pytest.FixtureRequest,
    reachable_tmp: Path,
    who: str,
    runner: str,
):
    if (who, runner) == ("user", "bwrap"):
        request.getfixturevalue("bwrap_for_users")
    owner = ordinary_user if who == "user" else request.getfixturevalue("root_account")
    caller = owner if who == "root" else ordinary_user
    daemon = make_daemon(
        account=WithToken(owner.name, owner.uid, owner.gid, owner.home),
        caller=caller,
        runner=runner,
    )
    look = "cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | grep -c "
    with station_on(daemon, reachable_tmp) as station:
        # What is looked for can be found: here is one that has it.
        there = f"A_TOKEN=canary-here sleep 1 & {look} canary-here"
        assert int(station.run(there, FULL_ACCESS).stdout.text) >= 1
        for mode in (*CONFINING, FULL_ACCESS):
            seen = station.run(f"{look} canary-in-the-daemon", mode)
            assert seen.stdout.text == "0\n", mode
            parent = "tr '\\0' '\\n' < /proc/$PPID/environ"
            assert "canary" not in station.run(parent, mode).stdout.text


@on(USER_BWRAP, SERVED_BWRAP, USER_LANDLOCK, SERVED_LANDLOCK)
def test_c223_a_signal_is_a_signal_on_every_runner(station: Station):
    for mode in (*CONFINING, FULL_ACCESS):
        result = station.run("kill -TERM $$", mode)
        assert (result.exit_code, result.signal) == (None, "SIGTERM")
        inner = station.run("bash -c 'kill -TERM $$'; exit $?", mode)
        assert (inner.exit_code, inner.signal) == (143, None)


@on(*UNDER_LANDLOCK)
def test_c224_what_landlock_does_not_mediate_is_not_claimed(station: Station):
    canary = station.make("outside/canary")
    result = station.run(f"chmod 777 {canary}", READ_ONLY)
    assert result.sandbox is not None
    if result.exit_code == 0:
        assert result.sandbox.enforcement == "partial"


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@on(USER_BWRAP, SERVED_LANDLOCK)
def test_c226_i36_a_client_that_leaves_takes_its_command_along(
    station: Station, end: signal.Signals
):
    mark = f"600.226{int(end)}"
    task = station.client.start(f"sleep {mark}1", mode=WORKSPACE_WRITE)
    while not station.processes(f"sleep {mark}1"):
        assert station.client.get(task.task_id) is not None
    argv = station.daemon.caller_argv(
        *("run", "--cwd", str(station.workspace), "--", f"echo said; sleep {mark}2")
    )
    process = subprocess.Popen(
        argv,
        env=station.environ,
        cwd=station.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "said\n"
    # setpriv becomes the client, so its pid is the client's.
    process.send_signal(end)
    process.communicate(timeout=20)
    assert (
        process.returncode
        == {
            signal.SIGKILL: -9,
            signal.SIGTERM: 143,
            signal.SIGINT: 130,
        }[end]
    )
    deadline = time.monotonic() + 10
    while station.processes(f"sleep {mark}2"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    # A task belongs to its session and not to a connection.
    assert station.processes(f"sleep {mark}1")
    listed = {one.task_id: one for one in station.client.list()}
    assert listed[task.task_id].status == "running"
    station.client.kill(task.task_id)
    if end == signal.SIGKILL:
        shown = station.daemon.cli("ps", "--all")
        assert f"sleep {mark}2" in shown.stdout


@on(USER_BWRAP, SERVED_LANDLOCK)
def test_a_session_outlives_its_connection(station: Station):
    session_id = station.client.session.session_id
    with station.attach(session_id) as other:
        task = other.start("echo kept; sleep 0.2; exit 4", mode=WORKSPACE_WRITE)
    with station.attach(session_id) as again:
        assert again.wait(task.task_id).exit_code == 4
        read = again.read_output(task.task_id)
        assert read is not None
        assert read.delta == "kept\n"


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_i34_commands_outlive_the_daemons_idle_threads(
    open_station: Callable[..., Station],
):
    # PR_SET_PDEATHSIG follows a thread, and idle ones are retired after ten seconds.
    # Both runners, foreground and background, at the same time, and nothing else.
    command = "sleep 25; echo done"
    opened = [open_station(pair) for pair in (USER_BWRAP, SERVED_LANDLOCK)]
    tasks = [one.client.start(command, mode=READ_ONLY) for one in opened]
    results: list[RunResult] = []

    def run(station: Station) -> None:
        results.append(station.run(command, READ_ONLY, timeout_ms=60_000))

    threads = [threading.Thread(target=run, args=(one,)) for one in opened]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        assert (result.exit_code, result.stdout.text) == (0, "done\n"), result
    assert len(results) == len(opened)
    for station, task in zip(opened, tasks, strict=True):
        assert station.client.wait(task.task_id).exit_code == 0
        read = station.client.read_output(task.task_id)
        assert read is not None
        assert read.delta == "done\n"
