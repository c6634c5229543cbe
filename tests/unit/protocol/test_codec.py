"""The client's conversion agrees with msgspec's, which the daemon uses."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bashd.core.errors import InternalError
from bashd.core.model import (
    Denial,
    Mode,
    RunResult,
    SandboxFacts,
    StreamOutput,
    TaskInfo,
    TaskStatus,
    Verdict,
)
from bashd.protocol.codec import from_wire, to_wire
from bashd.protocol.messages import (
    METHODS,
    NOTIFICATIONS,
    ExecParams,
    SessionModeParams,
)

MESSAGES = sorted(
    {cls for pair in METHODS.values() for cls in pair} | set(NOTIFICATIONS.values()),
    key=lambda cls: cls.__name__,
)

# Text as JSON can carry it, and numbers that msgspec takes for an int field.
st.register_type_strategy(str, st.text(st.characters(exclude_categories=["Cs"])))
st.register_type_strategy(int, st.integers(-(2**53), 2**53))
st.register_type_strategy(float, st.floats(allow_nan=False, allow_infinity=False))


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
@given(data=st.data())
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_message_survives_both_directions(cls: type, data: Any) -> None:
    message = data.draw(st.from_type(cls))
    sent = json.dumps(to_wire(message)).encode()
    assert msgspec.json.decode(sent, type=cls) == message
    answered = json.loads(msgspec.json.encode(message))
    assert from_wire(cls, answered) == message


RESULT = RunResult(
    exit_code=1,
    signal=None,
    timed_out=False,
    aborted=False,
    timeout_ms=120000,
    stdout=StreamOutput("out", bytes=3),
    stderr=StreamOutput("", truncated=True, spill_path="/s", bytes=9),
    sandbox=SandboxFacts(
        Mode.READ_ONLY,
        denied=True,
        verdict=Verdict.DENIED,
        denials=(Denial("/etc", "write", "kernel"),),
    ),
)


def test_a_result_is_typed_all_the_way_down() -> None:
    back = from_wire(RunResult, json.loads(msgspec.json.encode(RESULT)))
    assert back == RESULT
    assert back.sandbox is not None
    assert type(back.sandbox.mode) is Mode
    assert type(back.sandbox.denials) is tuple


def test_a_key_of_a_newer_daemon_is_skipped() -> None:
    answer = json.loads(msgspec.json.encode(RESULT)) | {"colour": "green"}
    assert from_wire(RunResult, answer) == RESULT


def test_a_misfit_names_the_place_and_the_likely_cause() -> None:
    answer = json.loads(msgspec.json.encode(RESULT))
    answer["sandbox"]["denials"][0]["evidence"] = 3
    with pytest.raises(
        InternalError, match=r"RunResult\.sandbox\.denials\[0\]\.evidence should be str"
    ):
        from_wire(RunResult, answer)
    del answer["exit_code"]
    with pytest.raises(InternalError, match=r"RunResult\.exit_code should be present"):
        from_wire(RunResult, answer)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("timed_out", 1),
        ("timeout_ms", True),
        ("stdout", []),
        ("sandbox", {"mode": "x"}),
    ],
)
def test_lookalikes_are_misfits(key: str, value: object) -> None:
    answer = json.loads(msgspec.json.encode(RESULT)) | {key: value}
    with pytest.raises(InternalError, match=key):
        from_wire(RunResult, answer)


def test_parameters_that_hold_their_default_are_not_sent() -> None:
    assert to_wire(ExecParams("ls", env={"A": None})) == {
        "command": "ls",
        "env": {"A": None},
    }


def test_a_required_null_is_sent() -> None:
    assert to_wire(SessionModeParams("s", None)) == {"session_id": "s", "mode": None}


def test_an_integral_start_time_is_a_number_like_any_other() -> None:
    task = TaskInfo("bash-1", None, "ls", TaskStatus.RUNNING, None, None, 5.0, 0.5)
    answer = json.loads(msgspec.json.encode(task)) | {"started_at": 5}
    assert from_wire(TaskInfo, answer) == task
