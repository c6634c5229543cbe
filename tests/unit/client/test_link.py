"""The blocking end of the wire."""

from __future__ import annotations

import json
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest

from bashd.client.link import Link
from bashd.core.errors import (
    ConnectError,
    InvalidParamsError,
    LimitError,
    NotAllowedError,
    StartError,
)
from bashd.protocol.wire import error_object

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.unit.client.wire_server import WireServer

HELLO = {"jsonrpc": "2.0", "id": 0, "result": {"protocol": 1}}


@pytest.fixture
def ends() -> Iterator[tuple[Link, socket.socket]]:
    ours, theirs = socket.socketpair()
    link = Link(ours)
    with theirs:
        yield link, theirs
    link.close()


def say(end: socket.socket, *messages: dict[str, Any]) -> None:
    end.sendall(b"".join(json.dumps(item).encode() + b"\n" for item in messages))


def test_the_handshake_travels_with_the_first_request(
    ends: tuple[Link, socket.socket],
) -> None:
    link, daemon = ends
    link.send("daemon.status", {})
    lines = daemon.recv(65536).splitlines()
    assert [json.loads(line)["method"] for line in lines] == [
        "initialize",
        "daemon.status",
    ]
    link.send("session.list", {})
    assert daemon.recv(65536).count(b"initialize") == 0


def test_an_answer_is_found_among_others_and_notifications(
    ends: tuple[Link, socket.socket],
) -> None:
    link, daemon = ends
    heard: list[tuple[str, dict[str, Any]]] = []
    link.on_notification = lambda method, params: heard.append((method, params))
    wanted = link.send("daemon.status", {})
    say(
        daemon,
        HELLO,
        {"jsonrpc": "2.0", "method": "task.done", "params": {"a": 1}},
        {"jsonrpc": "2.0", "id": 99, "result": "stale"},
        {"jsonrpc": "2.0", "id": wanted, "result": "mine"},
    )
    assert link.answer(wanted) == "mine"
    assert heard == [("task.done", {"a": 1})]
    assert link.hello == {"protocol": 1}


def test_an_error_is_raised_as_the_class_the_daemon_raised(
    ends: tuple[Link, socket.socket],
) -> None:
    link, daemon = ends
    wanted = link.send("exec.run", {})
    error = error_object(StartError("no such folder"))
    say(daemon, HELLO, {"jsonrpc": "2.0", "id": wanted, "error": error})
    with pytest.raises(StartError, match="no such folder"):
        link.answer(wanted)


def test_a_refused_handshake_is_the_error_of_the_first_request(
    ends: tuple[Link, socket.socket],
) -> None:
    link, daemon = ends
    wanted = link.send("exec.run", {})
    error = error_object(NotAllowedError("not in the group"))
    say(daemon, {"jsonrpc": "2.0", "id": 0, "error": error})
    daemon.shutdown(socket.SHUT_WR)
    with pytest.raises(NotAllowedError, match="not in the group"):
        link.answer(wanted)


def test_an_error_about_the_connection_ends_every_wait(
    ends: tuple[Link, socket.socket],
) -> None:
    link, daemon = ends
    wanted = link.send("exec.run", {})
    error = error_object(LimitError("too many connections"))
    say(daemon, HELLO, {"jsonrpc": "2.0", "id": None, "error": error})
    with pytest.raises(LimitError, match="too many connections"):
        link.answer(wanted)


def test_another_version_of_the_protocol_says_what_to_do(
    ends: tuple[Link, socket.socket],
) -> None:
    link, daemon = ends
    wanted = link.send("exec.run", {})
    say(daemon, {"jsonrpc": "2.0", "id": 0, "result": {"protocol": 2}})
    with pytest.raises(ConnectError, match=r"speaks version 2 .* restart the daemon"):
        link.answer(wanted)


@pytest.mark.parametrize("garbage", [b"hello\n", b"[]\n", b"\xff\n"])
def test_nonsense_from_the_daemon_is_a_connection_error(
    ends: tuple[Link, socket.socket], garbage: bytes
) -> None:
    link, daemon = ends
    wanted = link.send("exec.run", {})
    daemon.sendall(garbage)
    with pytest.raises(ConnectError, match="nonsense"):
        link.answer(wanted)


def test_a_daemon_that_closes_is_noticed_when_reading_even_after_a_failed_write(
    ends: tuple[Link, socket.socket],
) -> None:
    link, daemon = ends
    daemon.close()
    wanted = link.send("exec.run", {})
    with pytest.raises(ConnectError, match="closed the connection"):
        link.answer(wanted)


def test_what_json_cannot_carry_is_refused_before_anything_is_sent(
    ends: tuple[Link, socket.socket],
) -> None:
    link, daemon = ends
    with pytest.raises(InvalidParamsError, match=r"not valid UTF-8, near '.*echo '"):
        link.send("exec.run", {"command": "echo \udcff"})
    daemon.setblocking(False)
    with pytest.raises(BlockingIOError):
        daemon.recv(1)


def test_a_request_beyond_the_frame_limit_is_refused_here(
    ends: tuple[Link, socket.socket],
) -> None:
    link, _ = ends
    with pytest.raises(LimitError, match="at most 16777216"):
        link.send("exec.run", {"command": "x" * (16 * 1024 * 1024)})


def test_an_eight_mebibyte_script_fits(server: WireServer) -> None:
    link = Link.reach(str(server.path))
    command = 'echo "$x" é\n' * (8 * 1024 * 1024 // 12)
    seen: list[int] = []

    def measure(_c: object, _i: object, params: dict[str, Any]) -> None:
        seen.append(len(params["command"]))

    server.handlers["exec.run"] = measure
    link.call("exec.run", {"command": command})
    assert seen == [len(command)]
    link.close()


def in_thread(action: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=action)
    thread.start()
    return thread


def test_output_in_thousands_of_pieces_arrives_whole(
    ends: tuple[Link, socket.socket],
) -> None:
    link, daemon = ends
    heard: list[int] = []
    link.on_notification = lambda _, params: heard.append(params["n"])
    wanted = link.send("exec.run", {})
    pieces = [
        {"jsonrpc": "2.0", "method": "exec.output", "params": {"n": n, "x": "y" * 200}}
        for n in range(5000)
    ]
    speaking = in_thread(
        lambda: say(
            daemon, HELLO, *pieces, {"jsonrpc": "2.0", "id": wanted, "result": 1}
        )
    )
    assert link.answer(wanted) == 1
    speaking.join()
    assert heard == list(range(5000))
