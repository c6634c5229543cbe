"""Both clients over a real socket: the same calls, the same values, the same errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

import bashd.client
from bashd.client import connect, connect_sync
from bashd.core.abort import AbortSignal
from bashd.core.errors import (
    AbortedError,
    ConnectError,
    InvalidParamsError,
    StartError,
    UnknownSessionError,
    UnknownTaskError,
)
from bashd.core.model import ExecRequest, Mode, RunResult, TaskStatus
from tests.unit.client.wire_server import EXECUTOR, kept, run_result, task_info

if TYPE_CHECKING:
    from collections.abc import Callable

    from bashd.client import Client
    from bashd.core.executor import Executor
    from bashd.core.model import TaskInfo
    from tests.unit.client.wire_server import Connection, WireServer

BACKENDS = ["asyncio", "trio"]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


def in_loop(
    server: WireServer, backend: str, body: Callable[[Client], Any], **options: Any
) -> Any:
    """Run *body* with a connected client and return what it returns."""

    async def main() -> Any:
        async with connect(str(server.path), cwd="/tmp", **options) as client:
            return await body(client)

    return anyio.run(main, backend=backend)


# --- what both do ---------------------------------------------------------------------


def test_run_gives_a_typed_result(server: WireServer, backend: str) -> None:
    async def body(client: Executor) -> RunResult:
        spec = client.resolve(ExecRequest("echo out; echo err >&2; exit 3"))
        return await client.run(spec)

    result = in_loop(server, backend, body)
    with connect_sync(str(server.path), cwd="/tmp") as client:
        blocking = client.run("echo out; echo err >&2; exit 3")
    assert result == blocking
    assert result.exit_code == 3
    assert result.stdout.text == "out\n"
    assert result.stderr.text == "err\n"
    assert result.sandbox is not None
    assert result.sandbox.mode is Mode.READ_ONLY


def test_options_of_run_reach_the_daemon(server: WireServer, backend: str) -> None:
    server.handlers["exec.run"] = lambda _c, _i, _p: run_result()
    options: dict[str, Any] = {
        "mode": "workspace-write",
        "workdir": "sub",
        "timeout_ms": 2500.0,
        "env": {"A": "1", "B": None},
        "stdin": b"\x00\xff",
        "policy": "ci",
    }

    async def body(client: Client) -> None:
        await client.run("ls", **options)

    in_loop(server, backend, body)
    with connect_sync(str(server.path), cwd="/tmp") as client:
        client.run("ls", **options)
    first, second = server.asked("exec.run")
    assert first == second
    assert first == {
        "command": "ls",
        "session_id": "s1",
        "workdir": "/tmp/sub",
        "timeout_ms": 2500,
        "env": {"A": "1", "B": None},
        "stdin_b64": "AP8=",
        "stdout_max_bytes": 64000,
        "mode": "workspace-write",
        "policy": "ci",
    }


def test_a_session_of_its_own_is_opened_with_a_scrubbed_environment(
    server: WireServer, backend: str
) -> None:
    environ = {"PATH": "/bin", "AWS_SECRET_ACCESS_KEY": "x", "BASHD_SOCKET": "/y"}

    async def body(client: Client) -> str:
        return client.session.session_id

    in_loop(server, backend, body, environ=environ, mode="workspace-write")
    options: Any = {"environ": environ, "mode": Mode.WORKSPACE_WRITE}
    with connect_sync(str(server.path), cwd="/tmp", **options) as client:
        assert client.session.mode is Mode.WORKSPACE_WRITE
    first, second = server.asked("session.open")
    assert first == second
    assert first == {
        "cwd": "/tmp",
        "mode": "workspace-write",
        "ambient": {"PATH": "/bin"},
        "env_removed": ["AWS_SECRET_ACCESS_KEY", "BASHD_SOCKET"],
    }


def test_a_relative_cwd_keeps_its_dots(
    server: WireServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/usr")
    with connect_sync(str(server.path), cwd="lib/.."):
        assert server.asked("session.open")[0]["cwd"] == "/usr/lib/.."


def test_a_session_is_come_back_to_by_its_id(server: WireServer) -> None:
    with connect_sync(str(server.path), session="s7", environ={"A": "b"}) as client:
        assert client.session.session_id == "s7"
    assert server.asked("session.attach") == [
        {"session_id": "s7", "ambient": {"A": "b"}}
    ]
    assert server.asked("session.open") == []


def test_what_is_for_a_new_session_does_not_go_with_an_old_one(
    server: WireServer,
) -> None:
    refused = pytest.raises(InvalidParamsError, match="an existing one has its own")
    with refused, connect_sync(str(server.path), session="s7", mode="read-only"):
        pass


def test_an_unknown_mode_names_those_there_are(server: WireServer) -> None:
    with (
        connect_sync(str(server.path)) as client,
        pytest.raises(InvalidParamsError, match="read-only, workspace-write"),
    ):
        client.run("ls", mode="root")


def test_an_unknown_session_raises_the_daemons_class(
    server: WireServer, backend: str
) -> None:
    def refuse(_c: object, _i: object, params: dict[str, Any]) -> None:
        raise UnknownSessionError(f"no session {params['session_id']}")

    server.handlers["session.attach"] = refuse

    async def main() -> None:
        async with connect(str(server.path), session="s9"):
            pass

    # Not wrapped in an exception group, though a task group is around it.
    with pytest.raises(UnknownSessionError, match="no session s9"):
        anyio.run(main, backend=backend)


def test_an_error_in_the_block_comes_out_as_it_is(
    server: WireServer, backend: str
) -> None:
    async def body(_: Client) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        in_loop(server, backend, body)


def test_a_start_error_is_the_daemons_own(server: WireServer, backend: str) -> None:
    async def body(client: Client) -> None:
        await client.run("ls", workdir="/nowhere")

    with pytest.raises(StartError, match="No such file"):
        in_loop(server, backend, body)
    with (
        connect_sync(str(server.path)) as client,
        pytest.raises(StartError, match="No such file"),
    ):
        client.run("ls", workdir="/nowhere")


def test_tasks_of_every_kind_of_question(server: WireServer, backend: str) -> None:
    def unknown(_c: object, _i: object, params: dict[str, Any]) -> None:
        raise UnknownTaskError(f'unknown bash task "{params["task_id"]}"')

    task = task_info("bash-1", owner="", status="completed", exit_code=0)
    read = {"delta": "x", "lossy": False, "spill_paths": [], "task": task}
    server.handlers |= {
        "exec.start": lambda _c, _i, _p: task_info("bash-1"),
        "task.get": lambda _c, _i, p: {
            "task": task if p["task_id"] == "bash-1" else None
        },
        "task.list": lambda _c, _i, _p: {"tasks": [task]},
        "task.owner": lambda _c, _i, _p: {"owner": ""},
        "task.read": lambda _c, _i, p: {
            "read": read if p["task_id"] == "bash-1" else None
        },
        "task.wait": lambda _c, _i, _p: task,
        "task.kill": unknown,
    }

    async def body(client: Client) -> list[Any]:
        started = await client.start("sleep 9", deadline_ms=500)
        found = await client.get("bash-1")
        reading = await client.read_output("bash-1")
        assert reading is not None
        return [
            started.status,
            found,
            await client.get("bash-2"),
            await client.list(),
            await client.owner_of("bash-1"),
            reading.delta,
            await client.read_output("bash-2"),
            await client.wait("bash-1"),
            (await client.status()).runner,
        ]

    with connect_sync(str(server.path), cwd="/tmp") as client:
        started = client.start("sleep 9", deadline_ms=500)
        reading = client.read_output("bash-1")
        assert reading is not None
        found = client.get("bash-1")
        assert found is not None
        assert found.owner == ""
        blocking = [
            started.status,
            found,
            client.get("bash-2"),
            client.list(),
            client.owner_of("bash-1"),
            reading.delta,
            client.read_output("bash-2"),
            client.wait("bash-1"),
            client.status().runner,
        ]
        with pytest.raises(UnknownTaskError, match='unknown bash task "bash-9"'):
            client.kill("bash-9")
    assert in_loop(server, backend, body) == blocking
    assert blocking[0] is TaskStatus.RUNNING
    assert blocking[2] is None
    assert [start["deadline_ms"] for start in server.asked("exec.start")] == [500, 500]


def test_sessions_have_their_verbs(server: WireServer, backend: str) -> None:
    async def body(client: Client) -> list[str]:
        opened = await client.sessions.open("/usr", mode="read-only")
        shown = await client.sessions.get("s2")
        switched = await client.sessions.set_mode("s2", "workspace-write")
        listed = await client.sessions.list()
        await client.sessions.close("s2")
        return [
            opened.cwd,
            shown.session_id,
            switched.mode,
            *(s.session_id for s in listed),
        ]

    expected = ["/usr", "s2", "workspace-write", "s1", "s2"]
    assert in_loop(server, backend, body) == expected
    with connect_sync(str(server.path)) as client:
        sessions = client.sessions
        opened = sessions.open("/usr", mode="read-only")
        shown = sessions.get("s2")
        switched = sessions.set_mode("s2", "workspace-write")
        listed = [info.session_id for info in sessions.list()]
        sessions.close("s2")
    assert [opened.cwd, shown.session_id, switched.mode, *listed] == expected
    assert server.asked("session.close") == [{"session_id": "s2"}] * 2


# --- resolving without asking -----------------------------------------------------------


def test_a_client_resolves_with_its_daemons_settings(server: WireServer) -> None:
    with connect_sync(str(server.path), cwd="/tmp") as client:
        spec = client.resolve(ExecRequest("ls", workdir="a", timeout_ms=10**9))
        assert spec.workdir == "/tmp/a"
        assert spec.timeout_ms == EXECUTOR["max_timeout_ms"]
        with pytest.raises(InvalidParamsError, match=r"request\.timeoutMs"):
            client.resolve(ExecRequest("ls", timeout_ms=-1))
    assert [method for method, _ in server.requests] == ["initialize", "session.open"]


def test_a_spec_is_taken_as_it_is_and_takes_no_options(server: WireServer) -> None:
    server.handlers["exec.run"] = lambda _c, _i, _p: run_result()
    with connect_sync(str(server.path), cwd="/tmp") as client:
        spec = client.resolve(ExecRequest("ls", owner="me"))
        client.run(spec)
        with pytest.raises(InvalidParamsError, match="workdir: options go with a comm"):
            client.run(spec, workdir="/")
    assert server.asked("exec.run")[0]["owner"] == "me"


@pytest.mark.parametrize(
    ("daemon", "override", "session", "expected"),
    [
        (None, None, "read-only", None),
        ("read-only", None, "workspace-write", Mode.WORKSPACE_WRITE),
        ("read-only", "danger-full-access", "danger-full-access", Mode.READ_ONLY),
    ],
)
def test_the_mode_of_a_plain_call_is_the_policys_unless_it_is_overridden(
    server: WireServer,
    daemon: str | None,
    override: str | None,
    session: str,
    expected: Mode | None,
) -> None:
    greet = server.handlers["initialize"]
    opened = server.handlers["session.open"]

    def initialize(c: Connection, i: Any, p: dict[str, Any]) -> Any:
        return greet(c, i, p) | {"executor": EXECUTOR | {"sandbox_mode": daemon}}

    def session_open(c: Connection, i: Any, p: dict[str, Any]) -> Any:
        return opened(c, i, p) | {"mode": session, "mode_override": override}

    server.handlers |= {"initialize": initialize, "session.open": session_open}
    with connect_sync(str(server.path)) as client:
        assert client.sandbox_mode == expected


# --- live output, aborts, losses --------------------------------------------------------


def test_live_output_comes_before_the_result(server: WireServer, backend: str) -> None:
    heard: list[tuple[str, bytes]] = []

    async def body(client: Client) -> RunResult:
        return await client.run(
            r"printf 'a\xff'; printf b >&2",
            on_output=lambda *piece: heard.append(piece),
        )

    in_loop(server, backend, body)
    assert sorted(heard) == [("stderr", b"b"), ("stdout", b"a\xff")]
    heard.clear()
    with connect_sync(str(server.path)) as client:
        client.run("printf x", on_output=lambda *piece: heard.append(piece))
        client.run("printf y")
    assert heard == [("stdout", b"x")]


def test_a_sink_that_fails_aborts_the_command_and_its_error_comes_out(
    server: WireServer, backend: str
) -> None:
    def sink(_stream: str, _data: bytes) -> None:
        raise OSError("disk full")

    async def body(client: Client) -> None:
        with pytest.raises(OSError, match="disk full"):
            await client.run("echo x; sleep 60", on_output=sink)
        assert (await client.run("echo on")).stdout.text == "on\n"

    in_loop(server, backend, body)
    with connect_sync(str(server.path)) as client:
        with pytest.raises(OSError, match="disk full"):
            client.run("echo x; sleep 60", on_output=sink)
        assert client.run("echo still here").stdout.text == "still here\n"
    assert len(server.asked("exec.cancel")) == 2


def test_an_abort_ends_the_command_and_the_result_says_so(
    server: WireServer, backend: str
) -> None:
    abort = AbortSignal()

    async def body(client: Client) -> RunResult:
        return await client.run(
            "echo started; sleep 60",
            abort=abort,
            on_output=lambda _stream, _data: abort.abort("enough"),
        )

    result = in_loop(server, backend, body)
    assert result.aborted
    assert result.signal == "SIGTERM"


@pytest.mark.parametrize("verb", ["run", "start"])
def test_an_abort_that_fired_before_sends_nothing(
    server: WireServer, backend: str, verb: str
) -> None:
    abort = AbortSignal()
    abort.abort("changed my mind")

    async def body(client: Client) -> None:
        await getattr(client, verb)("echo x", abort=abort)

    with pytest.raises(AbortedError, match=r"^aborted before spawn: changed my mind$"):
        in_loop(server, backend, body)
    assert not server.asked("exec.run")
    assert not server.asked("exec.start")


def test_cancelling_the_coroutine_cancels_the_command(
    server: WireServer, backend: str
) -> None:
    async def body(client: Client) -> bool:
        started = anyio.Event()
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:

                async def run() -> None:
                    await client.run(
                        "echo x; sleep 60", on_output=lambda *_: started.set()
                    )

                tasks.start_soon(run)
                await started.wait()
                scope.cancel()
        await client.status()
        return scope.cancelled_caught

    assert in_loop(server, backend, body)
    assert [cancel["force"] for cancel in server.wait_asked("exec.cancel")] == [False]


def test_calls_at_once_share_one_connection(server: WireServer, backend: str) -> None:
    async def body(client: Client) -> dict[int, str]:
        texts: dict[int, str] = {}

        async def echo(number: int) -> None:
            # The later it was asked for, the sooner it answers.
            result = await client.run(f"sleep 0.{9 - number}; echo {number}")
            texts[number] = result.stdout.text

        async with anyio.create_task_group() as tasks:
            for number in range(6, 9):
                tasks.start_soon(echo, number)
        return texts

    assert in_loop(server, backend, body) == {6: "6\n", 7: "7\n", 8: "8\n"}
    assert len(server.asked("initialize")) == 1


def test_a_daemon_that_dies_fails_the_call_under_way_and_every_later_one(
    server: WireServer, backend: str
) -> None:
    async def body(client: Client) -> None:
        with pytest.raises(ConnectError, match="closed the connection"):
            await client.run("sleep 60", on_output=None)
        with pytest.raises(ConnectError):
            await client.status()
        await client.wait_lost()

    def die(_c: object, _i: object, _p: object) -> None:
        server.drop_clients()

    server.handlers["exec.run"] = die
    in_loop(server, backend, body)
    with (
        connect_sync(str(server.path)) as client,
        pytest.raises(ConnectError, match="closed the connection"),
    ):
        client.run("sleep 60")


def test_two_megabytes_of_output_arrive_whole(server: WireServer, backend: str) -> None:
    total = bytearray()

    async def body(client: Client) -> RunResult:
        return await client.run(
            "head -c 2000000 /dev/zero | tr '\\0' x",
            on_output=lambda _stream, data: total.extend(data),
        )

    assert in_loop(server, backend, body).stdout.bytes == 2000000
    assert bytes(total) == b"x" * 2000000


# --- notices ----------------------------------------------------------------------------


def done(connection: Connection, _i: Any, _p: dict[str, Any]) -> dict[str, Any]:
    task = task_info("bash-1", status="completed", exit_code=0)
    connection.notify("task.done", {"task": task})
    return run_result(stdout=kept(b"ran\n"))


def test_a_listener_hears_of_a_settled_task_until_it_unsubscribes(
    server: WireServer, backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    server.handlers["exec.run"] = done
    heard: list[TaskInfo] = []

    def broken(_: TaskInfo) -> None:
        raise RuntimeError("listener of mine")

    async def body(client: Client) -> None:
        client.on_task_done(broken)
        unsubscribe = client.on_task_done(heard.append)
        await client.run("true")
        unsubscribe()
        await client.run("true")

    in_loop(server, backend, body)
    assert [task.task_id for task in heard] == ["bash-1"]
    assert "bash-1" in caplog.text
    assert server.asked("task.subscribe") == [{"session_id": "s1"}]


def test_the_blocking_client_delivers_notices_when_it_reads(server: WireServer) -> None:
    server.handlers["exec.run"] = done
    heard: list[str] = []
    with connect_sync(str(server.path)) as client:
        client.on_task_done(lambda task: heard.append(task.task_id))
        assert client.run("true").stdout.text == "ran\n"
        assert heard == ["bash-1"]
        assert client.poll_notices() == 0
        done(server.connections[-1], None, {})
        assert client.poll_notices(timeout_s=5) == 1
    assert heard == ["bash-1", "bash-1"]


def test_names_that_the_package_does_not_have_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Connect'"):
        _ = bashd.client.Connect
