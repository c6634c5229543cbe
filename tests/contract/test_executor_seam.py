"""H. The executor seam, over a real daemon."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import anyio
import pytest

from bashd.client import connect
from bashd.client.link import Link
from bashd.core.abort import AbortSignal
from bashd.core.config import parse_config
from bashd.core.errors import (
    AbortedError,
    ConfigError,
    InvalidParamsError,
    UnknownTaskError,
)
from bashd.core.executor import Executor
from bashd.core.model import ExecRequest, ExecSpec, Mode
from tests.support.stations import (
    OWN,
    SERVED_LANDLOCK,
    USER_BWRAP,
    WORKSPACE_WRITE,
    Combination,
    Station,
    on,
)

if TYPE_CHECKING:
    from tests.conftest import DaemonFactory
    from tests.support.accounts import Account

OpenStation = Callable[..., Station]
TWO = (USER_BWRAP, SERVED_LANDLOCK)


def gone(station: Station, mark: str, within_s: float = 10) -> None:
    """Wait until no process of the daemon's has *mark* in its argv."""
    deadline = time.monotonic() + within_s
    while left := station.processes(mark):
        assert time.monotonic() < deadline, left
        time.sleep(0.01)


async def until(happened: Callable[[], object]) -> None:
    """Wait until something has happened of which nobody tells."""
    with anyio.fail_after(10):
        while not happened():  # noqa: ASYNC110 - a process table has no event
            await anyio.sleep(0.01)


@on(*TWO)
def test_c133_defaults(station: Station):
    spec = station.client.resolve(ExecRequest("true"))
    assert spec.timeout_ms == 120_000
    assert spec.workdir == str(station.workspace)
    written = spec.to_dict()
    assert "stdin" not in written
    assert "env" not in written
    assert written["owner"] is None
    assert written["sandbox_mode"] is None
    # Forgetting them is visible: they have no default.
    required = {
        f.name for f in dataclasses.fields(ExecSpec) if f.default is f.default_factory
    }
    assert required >= {"workdir", "timeout_ms", "owner", "sandbox_mode"}


def test_c134_c135_the_cap_holds_for_requests_and_for_the_default(
    open_station: OpenStation,
):
    limits = {"executor": {"timeout_ms": 5000, "max_timeout_ms": 1000}}
    station = open_station(USER_BWRAP, settings=limits)
    resolve = station.client.resolve
    assert resolve(ExecRequest("true", timeout_ms=99_999)).timeout_ms == 1000
    assert resolve(ExecRequest("true")).timeout_ms == 1000
    assert resolve(ExecRequest("true", timeout_ms=10)).timeout_ms == 10
    # Nor does it depend on the client: the daemon caps what comes.
    spec = dataclasses.replace(resolve(ExecRequest("true")), timeout_ms=99_999)
    assert station.client.run(spec).timeout_ms == 1000


@pytest.mark.parametrize(
    ("section", "key"),
    [
        *(("executor", "timeout_ms"), ("executor", "max_timeout_ms")),
        *(("executor", "max_output_bytes"), ("executor", "max_spill_bytes")),
        *(("executor", "grace_ms"), ("sandbox", "probe_timeout_ms")),
    ],
)
def test_c136_c182_bad_numbers_are_refused_by_name(section: str, key: str):
    values = ["nan", "inf", "0", "-1", '"1"', "true"]
    if key == "grace_ms":
        values.append("2147483648")
    for value in values:
        with pytest.raises(ConfigError, match=key) as caught:
            parse_config(f"[{section}]\n{key} = {value}\n", "bashd.toml")
        assert "bashd.toml" in caught.value.message


@on(*TWO)
def test_c137_a_timeout_that_is_none_is_refused_by_name(station: Station):
    for value in (-1, 0, float("nan"), float("inf")):
        with pytest.raises(InvalidParamsError, match=r"request\.timeoutMs"):
            station.client.resolve(ExecRequest("true", timeout_ms=value))
        with pytest.raises(InvalidParamsError, match=r"request\.timeoutMs"):
            station.run("true", timeout_ms=value)


@on(OWN)
def test_c137_the_daemon_does_not_rely_on_its_clients(station: Station):
    link = Link.reach(str(station.daemon.socket), autostart=False)
    try:
        for value in (-1, 0):
            with pytest.raises(InvalidParamsError, match="timeout"):
                link.call(
                    "exec.run",
                    {"command": "true", "timeout_ms": value, "cwd": "/"},
                )
    finally:
        link.close()


@on(*TWO)
def test_c138_failure_and_timeout_are_results(station: Station):
    failed = station.run("exit 5")
    assert (failed.exit_code, failed.signal) == (5, None)
    assert (failed.timed_out, failed.aborted) == (False, False)
    late = station.run("sleep 600", timeout_ms=100)
    assert (late.exit_code, late.signal) == (None, "SIGTERM")
    assert (late.timed_out, late.aborted) == (True, False)
    assert late.timeout_ms == 100


@pytest.mark.anyio
@on(OWN)
async def test_c138_c140_the_callers_own_signal_is_an_abort(station: Station):
    async with connect(
        str(station.daemon.socket), cwd=str(station.workspace)
    ) as client:
        abort = AbortSignal()
        result = None
        async with anyio.create_task_group() as tasks:

            async def outer_deadline() -> None:
                await until(lambda: station.processes("sleep 600.14"))
                abort.abort("enough")

            tasks.start_soon(outer_deadline)
            result = await client.run(
                "echo said; sleep 600.14", timeout_ms=60_000, abort=abort
            )
        assert result is not None
        assert (result.timed_out, result.aborted) == (False, True)
        assert result.signal == "SIGTERM"
        assert result.stdout.text == "said\n"
        with pytest.raises(AbortedError, match="aborted before spawn: enough"):
            await client.run("touch ran", mode=WORKSPACE_WRITE, abort=abort)
        with pytest.raises(AbortedError, match="aborted before spawn"):
            await client.start("touch ran", mode=WORKSPACE_WRITE, abort=abort)
        assert await client.list() == []
    assert not (station.workspace / "ran").exists()


@pytest.mark.anyio
@on(OWN)
async def test_c140_a_cancelled_call_ends_its_command(station: Station):
    async with connect(
        str(station.daemon.socket), cwd=str(station.workspace)
    ) as client:
        with anyio.move_on_after(5) as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.run, "sleep 600.15")
                await until(lambda: station.processes("sleep 600.15"))
                tasks.cancel_scope.cancel()
        assert not scope.cancelled_caught
        # The connection goes on.
        assert (await client.run("echo next")).stdout.text == "next\n"
    gone(station, "sleep 600.15")


@on(*TWO)
def test_c139_a_command_that_kills_itself_was_neither_late_nor_aborted(
    station: Station,
):
    result = station.run("kill -TERM $$")
    assert (result.exit_code, result.signal) == (None, "SIGTERM")
    assert (result.timed_out, result.aborted) == (False, False)


def test_c141_what_ignores_term_dies_after_the_grace(open_station: OpenStation):
    station = open_station(USER_BWRAP, settings={"executor": {"grace_ms": 200}})
    result = station.run("trap '' TERM; while :; do sleep 0.02; done", timeout_ms=100)
    assert (result.exit_code, result.signal, result.timed_out) == (
        None,
        "SIGKILL",
        True,
    )
    assert 300 <= result.usage.wall_ms < 5_000


@on(*TWO)
def test_c142_a_killed_tasks_grandchildren_die_with_it(station: Station):
    task = station.client.start(
        "(sleep 600.42 & wait) & sleep 600.42 & echo ready; wait", mode=WORKSPACE_WRITE
    )
    while len(station.processes("sleep 600.42")) < 3:
        assert station.client.get(task.task_id) is not None
    assert station.client.kill(task.task_id) is True
    settled = station.client.wait(task.task_id)
    assert (settled.status, settled.signal) == ("killed", "SIGTERM")
    gone(station, "sleep 600.42")


@on(*TWO)
def test_c145_c146_stdin(station: Station):
    empty = station.run("test -c /dev/stdin && cat && echo eof")
    assert (empty.exit_code, empty.stdout.text) == (0, "eof\n")
    assert station.run("cat", stdin=b"hello\n").stdout.text == "hello\n"
    assert station.run("exit 7", stdin=b"x" * 1024 * 1024).exit_code == 7
    echoed = station.run("wc -c", stdin=b"x" * 3_000_000)
    assert echoed.stdout.text == "3000000\n"


@on(*TWO)
def test_i41_nothing_waits_for_input(station: Station):
    result = station.run('cat; read x; echo "rc=$?"')
    assert result.stdout.text == "rc=1\n"
    task = station.client.start('cat; read x; echo "rc=$?"')
    assert station.client.wait(task.task_id).exit_code == 0
    read = station.client.read_output(task.task_id)
    assert read is not None
    assert read.delta == "rc=1\n"


def test_c147_a_stop_ends_every_task_and_waits(
    make_daemon: DaemonFactory, ordinary_user: Account
):
    daemon = make_daemon(
        account=ordinary_user,
        runner="landlock",
        settings={"executor": {"grace_ms": 300}},
    )
    workspace = daemon.make_workspace(f"ws-{time.monotonic_ns()}")
    for command in (
        "sleep 600.47",
        "true",
        "trap '' TERM; echo ready; while :; do sleep 0.05; done",
        "setsid bash -c \"trap '' TERM; while :; do sleep 0.05; done\" & wait",
    ):
        done = daemon.cli("run", "--background", "--cwd", str(workspace), "--", command)
        assert done.returncode == 0, done.stderr
    # Says whatever is left: processes, the socket, mounts.
    daemon.stop()
    assert not daemon.enclosure.pids()


@pytest.mark.anyio
@on(OWN)
async def test_c148_a_listener_that_raises_costs_the_others_nothing(station: Station):
    heard: list[str] = []
    async with connect(
        str(station.daemon.socket), cwd=str(station.workspace)
    ) as client:

        def fail(_task: object) -> None:
            raise RuntimeError("a listener's own mistake")

        client.on_task_done(fail)
        client.on_task_done(lambda task: heard.append(task.task_id))
        unsubscribe = client.on_task_done(lambda _task: heard.append("left"))
        unsubscribe()
        task = await client.start("true")
        assert (await client.wait(task.task_id)).exit_code == 0
        await until(lambda: heard)
    assert heard == [task.task_id]


@on(*TWO)
def test_c149_a_kill_after_the_end_signals_nobody(station: Station):
    ended = station.client.start("true")
    station.client.wait(ended.task_id)
    running = station.client.start("sleep 600.49")
    assert station.client.kill(ended.task_id) is False
    assert station.client.kill(ended.task_id) is False
    listed = station.client.list(session_id=station.client.session.session_id)
    assert [task.task_id for task in listed if task.status == "running"] == [
        running.task_id
    ]
    assert station.client.kill(running.task_id) is True
    with pytest.raises(UnknownTaskError):
        station.client.kill("bash-999999")


@on(*TWO)
def test_c150_foreground_calls_run_at_the_same_time(station: Station):
    # Each ends only with the other's help.
    station.text("mkfifo there back")
    session_id = station.client.session.session_id
    said: list[str] = []

    def answer() -> None:
        with station.attach(session_id) as client:
            result = client.run("read x < there; echo $x > back", mode=WORKSPACE_WRITE)
            said.append(str(result.exit_code))

    thread = threading.Thread(target=answer)
    thread.start()
    asked = station.run("echo word > there; cat back", timeout_ms=20_000)
    thread.join()
    assert (asked.stdout.text, said) == ("word\n", ["0"])


@pytest.mark.parametrize("combination", TWO, ids="-".join)
def test_i29_a_child_that_holds_the_pipe_holds_up_nobody(
    open_station: OpenStation, combination: Combination
):
    station = open_station(combination, settings={"executor": {"grace_ms": 200}})
    holders = (
        "sleep 600.29 & echo started",
        "setsid sleep 600.29 & echo started",
        "(setsid bash -c 'sleep 600.29 & :' &) ; echo started",
    )
    for command in holders:
        result = station.run(command)
        assert (result.exit_code, result.stdout.text) == (0, "started\n"), command
        assert not result.timed_out
        assert result.usage.wall_ms < 2_000
    # Settlement kills nobody; the session's end does.
    assert station.processes("sleep 600.29")
    other = station.open(mode=WORKSPACE_WRITE)
    other.run("sleep 600.28 & echo started")
    assert station.processes("sleep 600.28")
    other.sessions.close(other.session.session_id)
    gone(station, "sleep 600.28")


@on(*TWO)
def test_i37_a_session_can_list_its_tasks(station: Station):
    own = [station.client.start(f"echo {n}; sleep 600.{n}") for n in (371, 372)]
    other = station.open(mode=WORKSPACE_WRITE)
    foreign = other.start("sleep 600.373")
    listed = station.client.list(session_id=station.client.session.session_id)
    assert [task.task_id for task in listed] == [task.task_id for task in own]
    assert [task.command for task in listed] == [task.command for task in own]
    assert all(task.age_s >= 0 and task.status == "running" for task in listed)
    for task in (*own, foreign):
        station.client.kill(task.task_id)


@on(*TWO)
def test_a_sessions_mode_and_owner_ride_along(station: Station):
    assert station.client.sandbox_mode is not None
    spec = station.client.resolve(
        ExecRequest("true", owner="", sandbox_mode=Mode.READ_ONLY)
    )
    task = station.client.start(spec)
    assert station.client.owner_of(task.task_id) == "", "an empty token is an owner"
    assert station.client.owner_of("bash-999999") is None
    unowned = station.client.start("true")
    assert station.client.owner_of(unowned.task_id) is None


def test_the_client_is_an_executor():
    # What the tools are written against; a method that is missing shows here.
    from bashd.client import Client  # noqa: PLC0415 - loaded when it is named

    wanted = {name for name in vars(Executor) if not name.startswith("_")}
    assert wanted <= set(dir(Client))
