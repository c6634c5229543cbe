"""Lines to requests: what is taken, what is refused, and with which words."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bashd.core.errors import BashdError, CallerError, FrameError, InvalidParamsError
from bashd.core.model import Mode
from bashd.daemon.request import (
    MAX_STRINGS,
    MAX_STRUCTURE_BYTES,
    BadRequestError,
    Request,
    parse_request,
)
from bashd.protocol.framing import decode_frame
from bashd.protocol.messages import (
    METHODS,
    Empty,
    ExecParams,
    SessionModeParams,
    TaskListParams,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def line(method: str = "exec.run", **members: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, **members}).encode()


def refusal(data: bytes) -> tuple[str, str]:
    """Return code and message of the error for *data*."""
    with pytest.raises(BadRequestError) as caught:
        parse_request(data)
    return caught.value.error.code, caught.value.error.message


def outcome(data: bytes) -> Request | BashdError:
    """Return what became of *data*; anything but these two is a bug."""
    try:
        return parse_request(data)
    except BadRequestError as bad:
        return bad.error


# Parameters


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"command": 1}, "Expected `str`, got `int` - at `$.params.command`"),
        (
            {"command": "x", "env": {"A": 1}},
            "Expected `str | null`, got `int` - at `$.params.env[...]`",
        ),
        ({}, "Object missing required field `command` - at `$.params`"),
        ({"command": None}, "Object missing required field `command` - at `$.params`"),
        (
            {"command": "x", "mode": "wide-open"},
            "Invalid enum value 'wide-open' - at `$.params.mode`",
        ),
        ({"command": "x", "stream": 1}, "Expected `bool`, got `int`"),
        ({"command": "x", "timeout_ms": True}, "Expected `int | float | null`"),
        (
            {"command": "x", "timeoutMs": 1},
            "Unknown parameter - at `$.params.timeoutMs`",
        ),
        ([1], "Expected an object with named parameters - at `$.params`"),
    ],
)
@pytest.mark.parametrize("size", [1, 100_000])
def test_a_wrong_parameter_is_named_by_its_path(params: Any, message: str, size: int):
    if isinstance(params, dict) and "command" in params and size > 1:
        params = {**params, "cwd": "/" + "x" * size}
    code, said = refusal(line(params=params))
    assert code == "INVALID_PARAMS"
    assert message in said


def test_null_and_absent_mean_the_same():
    explicit = {
        "command": "x",
        "env": None,
        "stream": None,
        "env_removed": None,
        "stdin_stream": None,
    }
    assert parse_request(line(params=explicit)).params == ExecParams("x")
    assert parse_request(line("task.list", params=None)).params == TaskListParams()
    assert parse_request(line("daemon.status")).params == Empty()
    absent = parse_request(line("session.set_mode", params={"session_id": "s"}))
    assert absent.params == SessionModeParams("s", None)


def test_null_inside_a_parameter_is_a_value():
    request = parse_request(line(params={"command": "x", "env": {"A": None}}))
    assert request.params == ExecParams("x", env={"A": None})


def test_enums_are_decoded():
    request = parse_request(line(params={"command": "x", "mode": "workspace-write"}))
    assert isinstance(request.params, ExecParams)
    assert request.params.mode is Mode.WORKSPACE_WRITE


# Envelopes


@pytest.mark.parametrize("request_id", [0, -1, 2**63 - 1, "", "a" * 128, "\u00e9"])
def test_ids_are_integers_and_short_strings(request_id: int | str):
    assert parse_request(line("daemon.status", id=request_id)).request_id == request_id


@pytest.mark.parametrize(
    "request_id", [True, 1.5, 2**63, -(2**63), "a" * 129, [], {}, 1e300]
)
def test_other_ids_are_refused_and_not_echoed(request_id: object):
    with pytest.raises(BadRequestError) as caught:
        parse_request(line("daemon.status", id=request_id))
    assert caught.value.error.code == "INVALID_REQUEST"
    assert caught.value.request_id is None
    assert not caught.value.is_notification


def test_without_an_id_it_is_a_notification():
    request = parse_request(b'{"jsonrpc":"2.0","method":"daemon.status"}')
    assert request.request_id is None
    with pytest.raises(BadRequestError) as caught:
        parse_request(b'{"jsonrpc":"2.0","method":"nope"}')
    assert caught.value.is_notification


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"{}", "INVALID_REQUEST"),
        (b'{"id":1,"method":"daemon.status"}', "INVALID_REQUEST"),
        (b'{"jsonrpc":"1.0","id":1,"method":"daemon.status"}', "INVALID_REQUEST"),
        (b'{"jsonrpc":"2.0","id":1}', "INVALID_REQUEST"),
        (b'{"jsonrpc":"2.0","id":1,"method":7}', "INVALID_REQUEST"),
        (b'{"jsonrpc":"2.0","id":1,"result":{}}', "INVALID_REQUEST"),
        (b'{"jsonrpc":"2.0","id":1,"method":"exec.fork"}', "UNKNOWN_METHOD"),
        (b"[]", "BAD_FRAME"),
        (b"[" + b"{}," * 100_000 + b"{}]", "BAD_FRAME"),
        (b"", "BAD_FRAME"),
        (b"null", "BAD_FRAME"),
        (b"\xff\xfe", "BAD_FRAME"),
        (b'{"jsonrpc":"2.0","id":NaN}', "BAD_FRAME"),
        (b'{"jsonrpc":"2.0","id":1e999}', "BAD_FRAME"),
        (b'{"jsonrpc":"2.0","id":1,"id":2,"method":"daemon.status"}', "BAD_FRAME"),
    ],
)
def test_what_is_no_request_is_refused(data: bytes, code: str):
    assert refusal(data)[0] == code


def test_an_unknown_method_is_not_echoed_at_length():
    assert len(refusal(line("x" * 10_000))[1]) < 200


# Long lines are decoded by another decoder, with the same rules


@pytest.mark.parametrize("size", [1, 100_000])
@pytest.mark.parametrize(
    "broken",
    [
        '"env":{"A":"1","A":"2"}',
        '"command":"again"',
        '"timeout_ms":NaN',
        '"timeout_ms":1e999',
        '"env":{"A":"\\ud800"}',
        '"env":' + "[" * 100 + "]" * 100,
        '"env":{"A":"1",}',
    ],
)
def test_short_and_long_lines_have_the_same_rules(broken: str, size: int):
    text = (
        '{"jsonrpc":"2.0","id":1,"method":"exec.run","params":'
        f'{{"command":"{"x" * size}",{broken}}}}}'
    )
    assert refusal(text.encode())[0] == "BAD_FRAME"


def test_quotes_and_backslashes_in_a_long_command_are_its_text():
    command = '"\\' * 100_000 + '{":,[]}' * 100_000
    request = parse_request(line(params={"command": command, "env": {"A": '\\"'}}))
    assert request.params == ExecParams(command, env={"A": '\\"'})


def test_an_environment_of_thousands_is_taken():
    ambient = {f"VARIABLE_{number}": "x" * 100 for number in range(MAX_STRINGS // 4)}
    request = parse_request(line(params={"command": "x", "ambient": ambient}))
    assert request.params == ExecParams("x", ambient=ambient)


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":1,' * MAX_STRINGS,
        b'["",' * MAX_STRINGS,
        b"[0," * MAX_STRUCTURE_BYTES,
        b" " * (MAX_STRUCTURE_BYTES + 1),
        b"[" * MAX_STRUCTURE_BYTES * 2,
    ],
)
def test_a_line_of_too_many_values_is_refused_unparsed(body: bytes):
    start = (
        b'{"jsonrpc":"2.0","id":1,"method":"exec.run","params":{"command":"x","env":'
    )
    code, message = refusal(start + body)
    assert code == "BAD_FRAME"
    assert "more than" in message


# Nothing at all may do anything but succeed or say what is wrong


@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_refused(data: bytes):
    assert isinstance(outcome(data), Request | FrameError | CallerError)


@given(st.sampled_from(sorted(METHODS)), JSON, st.integers(0, 5000))
def test_any_parameters_are_valid_or_refused(method: str, params: Any, size: int):
    text = json.dumps(
        {"pad": "x" * size, "jsonrpc": "2.0", "id": 1, "method": method}
        | {"params": params}
    )
    match outcome(text.encode()):
        case Request() as taken:
            assert isinstance(taken.params, METHODS[method][0])
        case error:
            assert isinstance(error, FrameError | InvalidParamsError)


@given(
    st.text(st.characters(exclude_categories=("Cs",))),
    st.dictionaries(
        st.text(st.characters(exclude_categories=("Cs",))),
        st.none() | st.text(st.characters(exclude_categories=("Cs",))),
    ),
    st.sampled_from([0, 5000]),
    st.booleans(),
)
def test_any_command_and_environment_survive_the_way(
    command: str,
    env: dict[str, str | None],
    size: int,
    ascii_only: bool,
):
    command += "x" * size
    text = json.dumps(
        {"jsonrpc": "2.0", "id": 1, "method": "exec.run"}
        | {"params": {"command": command, "env": env}},
        ensure_ascii=ascii_only,
    )
    assert parse_request(text.encode()).params == ExecParams(command, env=env)


@pytest.mark.parametrize(
    "data",
    [
        '{"jsonrpc":"2.0","id":1,"id":2,"method":"daemon.status","params":{}}',
        '{"jsonrpc":"2.0","id":1,"method":"daemon.status","params":{"a":1,"a":2}}',
        '{"jsonrpc":"2.0","id":1,"method":"daemon.status","params":{"a":1,"a" :2}}',
        '{"params":"ab","jsonrpc":"2.0","id":{"k":1,"k":2}}',
        '{"params":{},"params":{"a":1,"b":2}}',
        '{"jsonrpc":"2.0","id":1,"id":1,"method":"x","params":{"a":":"}}',
    ],
)
def test_a_key_that_comes_twice_is_refused_in_the_smallest_request(data: str):
    code, said = refusal(data.encode())
    assert code == "BAD_FRAME"
    assert "twice" in said


@given(
    st.dictionaries(st.text(), st.none() | st.integers() | st.floats() | st.text()),
    st.sampled_from(["", " "]),
)
def test_small_requests_are_read_as_all_others(params: dict[str, Any], blank: str):
    text = json.dumps(
        {"jsonrpc": "2.0", "id": 1, "method": "x", "params": params},
        ensure_ascii=False,
        separators=(f"{blank},", f"{blank}:{blank}"),
    )
    data = text.encode(errors="surrogatepass")
    with contextlib.suppress(FrameError):
        assert decode_frame(data)["params"].keys() == params.keys()
    assert isinstance(outcome(data), BashdError)
    # The same refusal as with a member more, which is read with greater care.
    careful = data.replace(b'{"jsonrpc', b'{"more":[],"jsonrpc', 1)
    assert type(outcome(data)) is type(outcome(careful))
