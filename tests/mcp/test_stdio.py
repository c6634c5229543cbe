"""The transport: every line is answered, and nothing but messages is on the wire."""

from __future__ import annotations

import json
import os
import time
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp_types import ErrorData, JSONRPCRequest, JSONRPCResponse

from bashd.mcp.stdio import LineSplitter, decode_line, encode_line
from tests.mcp.raw_client import LOCAL_SERVER, raw_client
from tests.mcp.serving import ERAS, texts
from tests.support.local_executor import is_running

if TYPE_CHECKING:
    from pathlib import Path


def test_what_is_no_message_is_answered_and_the_connection_goes_on() -> None:
    with raw_client() as client:
        client.send(b"{nonsense")
        assert client.receive()["error"]["code"] == -32700
        client.send(b"[1, 2]")
        assert client.receive()["error"]["code"] == -32600
        client.send(b"[" * 100_000)
        assert client.receive()["error"]["code"] == -32700
        answer = client.bash(1, "echo on")
        assert answer["result"]["content"][0]["text"] == "on\n"


@pytest.mark.parametrize("request_id", [None, True, 1.5, [], {"a": 1}])
def test_a_request_whose_id_is_none_is_answered_too(request_id: object) -> None:
    arguments = {"command": "echo", "description": "d"}
    call = {
        "jsonrpc": "2.0",
        "id": request_id,
        "method": "tools/call",
        "params": {"name": "bash", "arguments": arguments},
    }
    answer = decode_line(json.dumps(call).encode())
    assert isinstance(answer, ErrorData)
    assert "id must be a string or an integer" in answer.message
    for good in (7, "seven", ""):
        line = json.dumps(call | {"id": good}).encode()
        assert isinstance(decode_line(line), JSONRPCRequest)


def test_a_lone_surrogate_is_answered_by_the_tool() -> None:
    with raw_client() as client:
        answer = client.bash(1, "echo \ud800")
        assert answer["result"]["isError"]
        assert "lone surrogate" in answer["result"]["content"][0]["text"]


def test_commands_see_no_wire() -> None:
    with raw_client() as client:
        answer = client.bash(1, "readlink /proc/self/fd/0; cat; echo read")
        assert answer["result"]["content"][0]["text"] == "/dev/null\nread\n"


def test_a_client_that_is_gone_takes_its_foreground_command_along(
    tmp_path: Path,
) -> None:
    with raw_client() as client:
        command = (
            f"echo $$ > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid; sleep 60"
        )
        args = {"command": command, "description": "d"}
        client.begin(1, "tools/call", {"name": "bash", "arguments": args})
        deadline = time.monotonic() + 10
        while not (tmp_path / "pid").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
    # Closed in the middle of the call, as by a client that was killed.
    assert not is_running(int((tmp_path / "pid").read_text()))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.anyio
@pytest.mark.parametrize("era", ERAS)
async def test_the_official_client_over_stdio(era: str) -> None:
    parameters = StdioServerParameters(
        command=LOCAL_SERVER[0], args=LOCAL_SERVER[1:], env=dict(os.environ)
    )
    async with Client(parameters, mode=era) as client:
        assert len((await client.list_tools()).tools) == 3
        args = {"command": "echo hello", "description": "d"}
        result = await client.call_tool("bash", args)
    assert texts(result) == ["hello\n"]


lines = st.lists(st.binary(max_size=20).map(lambda b: b.replace(b"\n", b"")))


@given(lines, st.lists(st.integers(0, 400)))
def test_lines_come_out_whole_however_the_bytes_arrive(
    sent: list[bytes], cuts: list[int]
) -> None:
    stream = b"".join(line + b"\n" for line in sent)
    splitter, got = LineSplitter(), []
    marks = sorted({0, *[min(cut, len(stream)) for cut in cuts], len(stream)})
    for start, end in pairwise(marks):
        got += splitter.feed(stream[start:end])
    assert got == [line for line in sent if line.strip()]


@given(st.integers(1, 7))
def test_a_line_that_is_too_long_costs_only_itself(size: int) -> None:
    splitter = LineSplitter(max_bytes=10)
    got: list[bytes | None] = []
    stream = b"short\n" + b"x" * 50 + b"\nafter\n"
    for start in range(0, len(stream), size):
        got += splitter.feed(stream[start : start + size])
    assert got == [b"short", None, b"after"]


@given(st.binary())
def test_any_line_is_a_message_or_an_error(line: bytes) -> None:
    assert decode_line(line) is not None


def test_decoding_keeps_what_only_json_can_spell() -> None:
    line = rb'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":"\ud800"}}'
    message = decode_line(line)
    assert isinstance(message, JSONRPCRequest)
    assert message.params == {"a": "\ud800"}
    assert isinstance(decode_line(b'{"jsonrpc":"1.0"}'), ErrorData)


@pytest.mark.parametrize(
    "text", ["plain", "gr\u00f6\u00dfe \U0001f600", "\ud800", "\0"]
)
def test_every_text_goes_out_as_one_line_of_json(text: str) -> None:
    line = encode_line(JSONRPCResponse(jsonrpc="2.0", id=1, result={"text": text}))
    assert line.count(b"\n") == 1
    assert json.loads(line)["result"]["text"] == text
