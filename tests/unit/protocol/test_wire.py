"""Envelopes and errors survive the way over the wire."""

from __future__ import annotations

import pytest

from bashd.core.errors import (
    ERROR_BY_CODE,
    BashdError,
    InternalError,
    UnknownTaskError,
)
from bashd.protocol.framing import decode_frame
from bashd.protocol.wire import (
    error_from_object,
    error_object,
    notification_line,
    request_line,
)


def test_a_request_is_one_line_that_decodes_to_itself() -> None:
    line = request_line(7, "exec.run", {"command": "echo 'é\n'\u2028"})
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert decode_frame(line[:-1]) == {
        "jsonrpc": "2.0",
        "id": 7,
        "method": "exec.run",
        "params": {"command": "echo 'é\n'\u2028"},
    }


def test_a_notification_has_no_id() -> None:
    assert "id" not in decode_frame(notification_line("exec.output", {}))


def test_a_string_that_json_cannot_carry_is_refused_when_it_is_sent() -> None:
    with pytest.raises(UnicodeEncodeError):
        request_line(1, "exec.run", {"command": "\udcff"})


@pytest.mark.parametrize("cls", sorted(set(ERROR_BY_CODE.values()), key=str))
def test_every_error_class_comes_back_as_itself(cls: type[BashdError]) -> None:
    back = error_from_object(error_object(cls("do this instead")))
    assert type(back) is (InternalError if cls is BashdError else cls)
    assert back.message == "do this instead"


def test_an_error_has_its_number_its_word_and_its_text() -> None:
    assert error_object(UnknownTaskError("no bash-9")) == {
        "code": -32011,
        "message": "no bash-9",
        "data": {"code": "UNKNOWN_TASK"},
    }


def test_an_unknown_word_keeps_its_message() -> None:
    error = error_from_object(
        {"code": 1, "message": "later", "data": {"code": "FROM_THE_FUTURE"}}
    )
    assert type(error) is InternalError
    assert error.message == "later"


@pytest.mark.parametrize("value", [None, 3, "text", [], {}, {"message": "x"}])
def test_an_error_that_is_none_is_still_an_error(value: object) -> None:
    assert isinstance(error_from_object(value), InternalError)
