"""One connection, from bytes to answers, over a real socket pair."""

from __future__ import annotations

import base64
import json
import logging
import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from bashd.core.errors import StartError
from bashd.core.model import Mode, RunResult, StreamOutput
from bashd.daemon.access import ConfinedAs
from bashd.daemon.quota import Bounds, Quota
from bashd.protocol.messages import (
    ExecOutput,
    ExecParams,
    StatusResult,
    TaskInfo,
    TaskParams,
)
from tests.support.served import (
    INITIALIZE,
    SmallService,
    code_of,
    connected,
    request,
    status,
)

if TYPE_CHECKING:
    from bashd.daemon.call import Call, Handler

pytestmark = pytest.mark.trio


def service(**handlers: Handler) -> SmallService:
    """Return a service; ``exec_run`` stands for ``exec.run``."""
    named = {name.replace("_", ".", 1): handler for name, handler in handlers.items()}
    return SmallService({"daemon.status": status, **named})


def result(text: str = "") -> RunResult:
    out = StreamOutput(text, bytes=len(text))
    return RunResult(0, None, False, False, 1000, out, StreamOutput(""), None)


class Gate:
    """A handler that waits to be let through, and tells how it went."""

    def __init__(self) -> None:
        self.entered = trio.Event()
        self.opened = trio.Event()
        self.told: list[str] = []
        self.ended = trio.Event()

    async def __call__(self, call: Call, params: Any) -> RunResult:
        call.abort.subscribe(lambda: self.tell(f"abort: {call.abort.reason}"))
        call.kill.subscribe(lambda: self.tell("kill"))
        self.entered.set()
        try:
            await self.opened.wait()
        except trio.Cancelled:
            self.told.append("cancelled")
            raise
        finally:
            self.ended.set()
        return result(params.command)

    def tell(self, what: str) -> None:
        self.told.append(what)
        self.opened.set()


# Handshake


async def test_initialize_and_a_request_in_one_write_are_both_answered():
    async with connected(service(), greet=False) as wire:
        await wire.send(INITIALIZE, request(1, "daemon.status"))
        assert (await wire.receive())["id"] == 0
        answer = await wire.receive()
        assert answer["id"] == 1
        assert answer["result"]["version"] == "test"


async def test_nothing_is_served_before_initialize():
    ran: list[object] = []

    async def run(_call: Call, params: object) -> RunResult:
        ran.append(params)
        return result()

    async with connected(service(exec_run=run), greet=False) as wire:
        assert await wire.ask(1, "exec.run", command="true") == "INVALID_REQUEST"
        await wire.send(INITIALIZE)
        assert "result" in await wire.receive()
        assert not ran


async def test_another_protocol_version_is_refused_with_both_numbers():
    async with connected(service(), greet=False) as wire:
        await wire.request(1, "initialize", protocol=99)
        answer = await wire.receive()
        assert "protocol 1 " in answer["error"]["message"]
        assert "99" in answer["error"]["message"]
        assert await wire.ask(2, "daemon.status") == "INVALID_REQUEST"


async def test_a_second_initialize_is_refused():
    async with connected(service()) as wire:
        assert await wire.ask(1, "initialize", protocol=1) == "INVALID_REQUEST"


async def test_who_does_not_initialize_is_dropped(
    autojump_clock: trio.testing.MockClock,
):
    del autojump_clock
    async with connected(service(), greet=False) as wire:
        answer = await wire.receive()
        assert code_of(answer) == "LIMIT"
        assert answer["id"] is None
        with pytest.raises(EOFError):
            await wire.receive()


async def test_who_did_initialize_may_be_silent(autojump_clock: trio.testing.MockClock):
    del autojump_clock
    async with connected(service()) as wire:
        await trio.sleep(10_000)
        assert await wire.ask(1, "daemon.status")


async def test_a_first_message_that_is_long_ends_the_connection():
    async with connected(service(), greet=False) as wire:
        await wire.send_raw(b'{"jsonrpc":"2.0","method":"' + b"x" * 100_000)
        assert code_of(await wire.receive()) == "BAD_FRAME"
        with pytest.raises(EOFError):
            await wire.receive()


# Requests


async def test_answers_come_as_handlers_finish():
    gate = Gate()
    async with connected(service(exec_run=gate)) as wire:
        await wire.request("slow", "exec.run", command="x")
        await wire.request("fast", "daemon.status")
        assert (await wire.receive())["id"] == "fast"
        gate.opened.set()
        assert (await wire.receive())["id"] == "slow"


async def test_an_id_that_is_open_cannot_be_used_again():
    gate = Gate()
    async with connected(service(exec_run=gate)) as wire:
        await wire.request(7, "exec.run", command="first")
        await gate.entered.wait()
        await wire.request(7, "daemon.status")
        answer = await wire.receive()
        assert answer["id"] is None
        assert "7" in answer["error"]["message"]
        gate.opened.set()
        answer = await wire.receive()
        assert answer["id"] == 7
        assert answer["result"]["stdout"]["text"] == "first"
        assert await wire.ask(7, "daemon.status")


async def test_open_requests_are_bounded():
    gate = Gate()
    bounds = Bounds(requests_in_flight=2)
    async with connected(service(exec_run=gate), bounds=bounds) as wire:
        await wire.request(1, "exec.run", command="x")
        await wire.request(2, "exec.run", command="x")
        assert await wire.ask(3, "exec.run", command="x") == "LIMIT"
        gate.opened.set()
        assert {(await wire.receive())["id"] for _ in range(2)} == {1, 2}
        assert "exit_code" in await wire.ask(4, "exec.run", command="x")


async def test_large_requests_of_one_user_are_bounded_in_all():
    gate = Gate()
    bounds = Bounds(held_bytes_per_uid=100_000)
    async with connected(service(exec_run=gate), bounds=bounds) as wire:
        await wire.request(1, "exec.run", command="x" * 60_000)
        assert await wire.ask(2, "exec.run", command="x" * 60_000) == "LIMIT"
        gate.opened.set()
        assert (await wire.receive())["id"] == 1
        assert "exit_code" in await wire.ask(3, "exec.run", command="x" * 60_000)


async def test_a_handler_gets_the_decoded_parameters():
    seen: list[ExecParams] = []

    async def run(_call: Call, params: ExecParams) -> RunResult:
        seen.append(params)
        return result()

    async with connected(service(exec_run=run)) as wire:
        await wire.ask(1, "exec.run", command="ls", env={"A": "1", "B": None})
    assert seen == [ExecParams("ls", env={"A": "1", "B": None})]


async def test_a_notification_of_a_request_method_is_dropped_without_an_answer():
    ran: list[object] = []

    async def run(_call: Call, params: object) -> RunResult:
        ran.append(params)
        return result()

    async with connected(service(exec_run=run)) as wire:
        await wire.notify("exec.run", command="true")
        await wire.notify("no.such.method")
        assert (await wire.ask(1, "daemon.status"))["version"] == "test"
        assert not ran


async def test_an_error_of_a_handler_keeps_its_code_and_text():
    async def run(_call: Call, _params: object) -> RunResult:
        raise StartError("no such directory: /nowhere")

    async with connected(service(exec_run=run)) as wire:
        await wire.request(1, "exec.run", command="true")
        answer = await wire.receive()
        assert answer["error"] == {
            "code": StartError.rpc_code,
            "message": "no such directory: /nowhere",
            "data": {"code": "START_FAILED"},
        }


async def test_an_error_from_a_handlers_nursery_keeps_its_code():
    async def fail() -> None:
        raise StartError("inside")

    async def run(_call: Call, _params: object) -> RunResult:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)
        return result()

    async with connected(service(exec_run=run)) as wire:
        assert await wire.ask(1, "exec.run", command="true") == "START_FAILED"


async def test_a_bug_in_a_handler_is_logged_and_costs_one_request(
    caplog: pytest.LogCaptureFixture,
):
    async def run(_call: Call, _params: object) -> RunResult:
        raise ZeroDivisionError("secret detail")

    async with connected(service(exec_run=run)) as wire:
        await wire.request(1, "exec.run", command="true")
        answer = await wire.receive()
        assert code_of(answer) == "INTERNAL"
        assert "secret detail" not in answer["error"]["message"]
        assert await wire.ask(2, "daemon.status")
    assert "secret detail" in caplog.text


async def test_a_message_that_quotes_undecodable_bytes_can_be_sent():
    async def run(_call: Call, _params: object) -> RunResult:
        raise StartError("no such file: \udcff")

    async with connected(service(exec_run=run)) as wire:
        assert await wire.ask(1, "exec.run", command="true") == "START_FAILED"


async def test_an_answer_beyond_the_frame_limit_is_an_error():
    async def run(_call: Call, _params: object) -> RunResult:
        return result("x" * (17 << 20))

    async with connected(service(exec_run=run)) as wire:
        assert await wire.ask(1, "exec.run", command="true") == "LIMIT"


async def test_a_method_without_handler_is_not_an_unknown_one():
    async with connected(service()) as wire:
        assert await wire.ask(1, "session.list") == "INTERNAL"
        assert await wire.ask(2, "session.no") == "UNKNOWN_METHOD"


# Withdrawing


async def test_cancel_tells_the_handler_and_its_result_still_comes():
    gate = Gate()
    async with connected(service(exec_run=gate)) as wire:
        await wire.request(1, "exec.run", command="x")
        await gate.entered.wait()
        await wire.request(2, "exec.cancel", request_id=1)
        answers = {(await wire.receive())["id"] for _ in range(2)}
        assert answers == {1, 2}
        assert gate.told == ["abort: cancelled by the client"]


async def test_forced_cancel_says_kill_before_abort():
    gate = Gate()
    async with connected(service(exec_run=gate)) as wire:
        await wire.request(1, "exec.run", command="x")
        await gate.entered.wait()
        await wire.notify("exec.cancel", request_id=1, force=True)
        assert (await wire.receive())["id"] == 1
        assert gate.told == ["kill", "abort: cancelled by the client"]


async def test_cancelling_what_has_ended_is_no_error():
    async with connected(service()) as wire:
        assert await wire.ask(1, "exec.cancel", request_id=99) == {}


async def test_disconnecting_aborts_and_lets_the_handler_end():
    gate = Gate()
    async with connected(service(exec_run=gate)) as wire:
        await wire.request(1, "exec.run", command="x")
        await gate.entered.wait()
        wire.close()
        await gate.ended.wait()
    assert gate.told == ["abort: client disconnected"]


async def test_half_closing_is_disconnecting():
    gate = Gate()
    async with connected(service(exec_run=gate)) as wire:
        await wire.request(1, "exec.run", command="x")
        await gate.entered.wait()
        wire.socket.shutdown(trio.socket.SHUT_WR)
        # What was answered to the abort is still delivered.
        assert (await wire.receive())["id"] == 1
        with pytest.raises(EOFError):
            await wire.receive()
    assert gate.told == ["abort: client disconnected"]


async def test_a_pure_wait_is_cancelled_by_cancel():
    entered = trio.Event()

    async def wait(_call: Call, _params: TaskParams) -> TaskInfo:
        entered.set()
        return await trio.sleep_forever()

    async with connected(service(task_wait=wait)) as wire:
        await wire.request(1, "task.wait", task_id="1")
        await entered.wait()
        await wire.notify("exec.cancel", request_id=1)
        assert code_of(await wire.receive()) == "TOOL_ABORTED"


async def test_a_pure_wait_ends_with_its_client():
    entered, ended = trio.Event(), trio.Event()

    async def wait(_call: Call, _params: TaskParams) -> TaskInfo:
        entered.set()
        try:
            return await trio.sleep_forever()
        finally:
            ended.set()

    async with connected(service(task_wait=wait)) as wire:
        await wire.request(1, "task.wait", task_id="1")
        await entered.wait()
        wire.close()
        await ended.wait()


async def test_closed_fires_for_what_outlives_its_call():
    told: list[str] = []

    async def subscribe(call: Call, _params: object) -> StatusResult:
        call.client.closed.subscribe(lambda: told.append(call.client.closed.reason))
        return await status(call, _params)

    async with connected(service(task_subscribe=subscribe)) as wire:
        assert await wire.ask(1, "task.subscribe", session_id="s")
        assert not told
    assert told == ["client disconnected"]


# stdin


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


async def read_all(call: Call, _params: object) -> RunResult:
    assert call.stdin is not None
    received = b"".join([chunk async for chunk in call.stdin])
    return result(received.decode())


async def test_stdin_arrives_in_order_and_ends():
    async with connected(service(exec_run=read_all)) as wire:
        pieces = [f"{number}," for number in range(100)]
        run = request(1, "exec.run", command="cat", stdin_stream=True)
        feeds = [
            request(n + 2, "exec.stdin", request_id=1, data_b64=b64(piece.encode()))
            for n, piece in enumerate(pieces)
        ]
        end = request(500, "exec.stdin", request_id=1, eof=True)
        await wire.send(run, *feeds, end)
        answers = [await wire.receive() for _ in range(102)]
        text = next(a["result"]["stdout"]["text"] for a in answers if a["id"] == 1)
        assert text == "".join(pieces)


async def test_stdin_is_acknowledged_when_it_has_room():
    reading = trio.Event()

    async def run(call: Call, _params: object) -> RunResult:
        assert call.stdin is not None
        await reading.wait()
        total = 0
        async for chunk in call.stdin:
            total += len(chunk)
        return result(str(total))

    piece = b64(b"x" * 300_000)
    async with connected(service(exec_run=run)) as wire:
        await wire.request(1, "exec.run", command="cat", stdin_stream=True)
        await wire.request(2, "exec.stdin", request_id=1, data_b64=piece)
        # Not yet: it is more than there is room for, and nobody reads.
        assert await wire.ask(3, "daemon.status")
        reading.set()
        assert (await wire.receive())["id"] == 2
        assert await wire.ask(4, "exec.stdin", request_id=1, eof=True) == {}
        answer = await wire.receive()
        assert answer["result"]["stdout"]["text"] == "300000"


async def test_a_client_that_floods_stdin_is_aborted_and_still_heard():
    gate = Gate()
    async with connected(service(exec_run=gate)) as wire:
        await wire.request(1, "exec.run", command="sleep 9", stdin_stream=True)
        await gate.entered.wait()
        piece = b64(b"x" * (5 << 20))
        for _ in range(4):
            await wire.notify("exec.stdin", request_id=1, data_b64=piece)
        assert (await wire.receive())["id"] == 1
        assert gate.told == ["abort: its stdin came faster than it was read"]
        assert await wire.ask(2, "daemon.status")


async def test_stdin_that_is_not_base64_aborts_the_command():
    gate = Gate()
    async with connected(service(exec_run=gate)) as wire:
        await wire.request(1, "exec.run", command="cat", stdin_stream=True)
        await gate.entered.wait()
        bad = await wire.ask(2, "exec.stdin", request_id=1, data_b64="%%%")
        assert bad == "INVALID_PARAMS"
        assert (await wire.receive())["id"] == 1
        assert gate.told == ["abort: its stdin was not valid base64"]


async def test_stdin_for_a_command_that_has_ended_is_acknowledged():
    async with connected(service()) as wire:
        data = b64(b"x")
        assert await wire.ask(1, "exec.stdin", request_id=9, data_b64=data) == {}


async def test_who_waits_for_room_is_answered_when_the_command_ends():
    gate = Gate()
    async with connected(service(exec_run=gate)) as wire:
        await wire.request(1, "exec.run", command="true", stdin_stream=True)
        piece = b64(b"x" * 300_000)
        await wire.request(2, "exec.stdin", request_id=1, data_b64=piece)
        await gate.entered.wait()
        gate.opened.set()
        assert {(await wire.receive())["id"] for _ in range(2)} == {1, 2}


async def test_without_stdin_stream_there_is_no_channel():
    async def run(call: Call, _params: object) -> RunResult:
        return result(str(call.stdin))

    async with connected(service(exec_run=run)) as wire:
        answer = await wire.ask(1, "exec.run", command="cat")
        assert answer["stdout"]["text"] == "None"


async def test_a_background_start_cannot_stream_stdin():
    async with connected(service(exec_start=Gate())) as wire:
        code = await wire.ask(1, "exec.start", command="cat", stdin_stream=True)
        assert code == "INVALID_PARAMS"


# Clients that do not read


def output(call: Call, size: int) -> ExecOutput:
    return ExecOutput(call.request_id, "stdout", "x" * size)


async def test_live_output_is_dropped_for_who_does_not_read_and_the_result_is_not():
    sent: list[bool] = []

    async def run(call: Call, _params: object) -> RunResult:
        piece = output(call, 50_000)
        sent.extend(call.notify_nowait("exec.output", piece) for _ in range(100))
        return result("complete")

    async with connected(service(exec_run=run)) as wire:
        await wire.request(1, "exec.run", command="yes", stream=True)
        received = 0
        while "id" not in (message := await wire.receive()):
            received += 1
        assert message["result"]["stdout"]["text"] == "complete"
        assert received == sum(sent)
        assert 0 < received < 100


async def test_notify_waits_for_who_reads_slowly_and_loses_nothing():
    async def run(call: Call, _params: object) -> RunResult:
        for number in range(100):
            piece = ExecOutput(call.request_id, "stdout", "x" * 50_000, number)
            assert await call.notify("exec.output", piece)
        return result()

    async with connected(service(exec_run=run)) as wire:
        await wire.request(1, "exec.run", command="yes", stream=True)
        await trio.testing.wait_all_tasks_blocked()
        offsets: list[int] = []
        while "id" not in (message := await wire.receive()):
            offsets.append(message["params"]["offset"])
        assert offsets == list(range(100))


async def test_notify_returns_false_once_the_client_is_gone():
    told: list[bool] = []

    async def run(call: Call, _params: object) -> RunResult:
        told.append(True)
        while told[-1]:
            told.append(await call.notify("exec.output", output(call, 50_000)))
        return result()

    async with connected(service(exec_run=run)) as wire:
        await wire.request(1, "exec.run", command="yes", stream=True)
        await trio.testing.wait_all_tasks_blocked()
        wire.close()
    assert told[-1] is False


async def test_who_leaves_answers_unread_gets_no_more_requests_read():
    served: list[int] = []

    async def run(_call: Call, _params: object) -> RunResult:
        served.append(1)
        return result("x" * 100_000)

    bounds = Bounds(unread_bytes=1_000_000)
    async with connected(service(exec_run=run), bounds=bounds) as wire:
        async with trio.open_nursery() as nursery:

            async def flood() -> None:
                for number in range(200):
                    await wire.request(number, "exec.run", command="x" * 5000)

            nursery.start_soon(flood)
            await trio.testing.wait_all_tasks_blocked()
            assert len(served) < 40
            ids = {(await wire.receive())["id"] for _ in range(200)}
        assert ids == set(range(200))


async def test_who_holds_too_much_is_closed_and_others_of_the_user_are_not():
    bounds = Bounds(held_bytes_per_uid=1_000_000)
    quota = Quota(bounds)
    async with (
        connected(service(), bounds=bounds, quota=quota) as innocent,
        connected(service(), bounds=bounds, quota=quota) as greedy,
    ):
        await greedy.send_raw(b'{"x":"' + b"x" * 1_100_000)
        assert code_of(await greedy.receive()) == "LIMIT"
        with pytest.raises(EOFError):
            await greedy.receive()
        assert await innocent.ask(1, "daemon.status")


async def test_nothing_is_held_for_a_connection_that_is_over():
    bounds = Bounds()
    quota = Quota(bounds)
    other = quota.admit(0)
    gate = Gate()
    async with connected(service(exec_run=gate), bounds=bounds, quota=quota) as wire:
        await wire.request(1, "exec.run", command="x", stdin_stream=True)
        piece = b64(b"x" * 300_000)
        await wire.request(2, "exec.stdin", request_id=1, data_b64=piece)
        await wire.send_raw(b'{"half a message')
        await gate.entered.wait()
    other.check_room(bounds.held_bytes_per_uid)
    assert quota.connections == 1


# The log


async def test_the_end_of_a_bad_connection_is_logged_with_its_reason(
    caplog: pytest.LogCaptureFixture,
):
    caplog.set_level(logging.INFO)
    async with connected(service()) as wire:
        await wire.send_raw(b"nonsense\n" * 100)
        assert len(await wire.receive_all()) == 65
    assert "too many lines that are no requests" in caplog.text


async def test_a_confined_caller_is_refused_and_logged_once(
    caplog: pytest.LogCaptureFixture,
):
    ran: list[object] = []

    async def run(_call: Call, params: object) -> RunResult:
        ran.append(params)
        return result()

    confined, served = ConfinedAs(), service(exec_run=run)
    async with connected(served, judge=lambda _pid, _: confined) as wire:
        for number in range(1, 6):
            assert await wire.ask(number, "exec.run", command="id") == "NOT_ALLOWED"
        assert await wire.ask(6, "daemon.status")
    assert not ran
    assert caplog.text.count("refused to pid") == 1
    assert served.refusals == [(os.getuid(), "exec.run", "NOT_ALLOWED")]


async def test_a_confined_process_cannot_steer_what_an_ordinary_one_runs():
    def judge(pid: int, _standing: object) -> ConfinedAs | None:
        return None if pid == os.getpid() else ConfinedAs("s", Mode.READ_ONLY)

    gate = Gate()
    async with connected(service(exec_run=gate), judge=judge) as wire:
        await wire.request(1, "exec.run", command="bash", stdin_stream=True)
        await gate.entered.wait()
        evil = [
            request(8, "exec.stdin", request_id=1, data_b64=b64(b"echo owned\n")),
            request(9, "exec.cancel", request_id=1, force=True),
        ]
        # Lives until its stdin ends: a sender must.
        confined = subprocess.Popen(  # noqa: ASYNC220 - returns once it has started
            ["/bin/sh", "-c", 'printf "%s\\n" "$@"; read -r end', "sh"]
            + [json.dumps(message) for message in evil],
            stdin=subprocess.PIPE,
            stdout=wire.socket.fileno(),
        )
        answers = [await wire.receive() for _ in range(2)]
        confined.communicate()
        assert {answer["id"] for answer in answers} == {8, 9}
        assert gate.told == []
        # The same from the ordinary process does it.
        await wire.request(9, "exec.cancel", request_id=1, force=True)
        assert {(await wire.receive())["id"] for _ in range(2)} == {1, 9}
        assert gate.told == ["kill", "abort: cancelled by the client"]


async def test_a_message_that_two_processes_wrote_is_nobodys():
    async with connected(service()) as wire:
        await wire.send_raw(b'{"jsonrpc":"2.0",')
        await trio.testing.wait_all_tasks_blocked()
        other = subprocess.Popen(  # noqa: ASYNC220 - returns once it has started
            ["/bin/sh", "-c", 'echo \'"id":1,"method":"daemon.status"}\'; read -r end'],
            stdin=subprocess.PIPE,
            stdout=wire.socket.fileno(),
        )
        answers = await wire.receive_all()
        other.communicate()
        assert [code_of(answer) for answer in answers] == ["BAD_FRAME"]


# Who reads and who serves


async def test_whoever_reads_and_serves_every_request_is_heard_and_none_piles_up():
    gates: dict[str, Gate] = {}

    async def run(call: Call, params: Any) -> RunResult:
        return await gates[params.command](call, params)

    async with connected(service(exec_run=run)) as wire:
        tasks_at_rest = trio.lowlevel.current_statistics().tasks_living
        for round_ in range(3):
            names = [f"{round_}-{number}" for number in range(10)]
            for number, name in enumerate(names):
                gate = gates[name] = Gate()
                await wire.request(100 * round_ + number, "exec.run", command=name)
                with trio.fail_after(10):
                    await gate.entered.wait()
            # While ten are served, somebody reads: a short one is answered at once.
            answer = await wire.ask(f"short {round_}", "daemon.status")
            assert answer["version"] == "test"
            for name in names:
                gates[name].opened.set()
                assert (await wire.receive())["result"]["stdout"]["text"] == name
            await trio.testing.wait_all_tasks_blocked()
            # One that reads and one that rests, however many have served; the first
            # of all waits for them.
            now = trio.lowlevel.current_statistics().tasks_living
            assert now <= tasks_at_rest + 2
