"""Arguments: whatever a model sends, the answer is a request or a text."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bashd.core.model import Mode
from bashd.tools.errors import ToolError
from bashd.tools.validation import BashArgs, parse_bash_args, parse_task_args

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
NAMES = (
    "command",
    "description",
    "timeoutMs",
    "workdir",
    "run_in_background",
    "sandbox_permissions",
    "justification",
    "task_id",
)
arguments = json_values | st.fixed_dictionaries(
    {}, optional=dict.fromkeys(NAMES, json_values)
)


@given(arguments, st.booleans())
def test_any_json_is_accepted_or_refused_with_a_text(
    args: object, escalation: bool
) -> None:
    with contextlib.suppress(ToolError):
        parse_bash_args(args, escalation=escalation).command.encode()
    with contextlib.suppress(ToolError):
        assert parse_task_args(args)


def test_every_argument_has_its_place() -> None:
    args = {
        "command": "ls",
        "description": "List",
        "timeoutMs": 5.5,
        "workdir": "sub",
        "run_in_background": True,
        "sandbox_permissions": "danger-full-access",
        "justification": "why",
        "made_up": object(),
    }
    assert parse_bash_args(args, escalation=True) == BashArgs(
        command="ls",
        description="List",
        timeout_ms=5.5,
        workdir="sub",
        background=True,
        mode=Mode.DANGER_FULL_ACCESS,
        justification="why",
    )


def test_optional_null_is_absent() -> None:
    args = {"command": "ls", "description": "List"}
    nulls = dict.fromkeys(NAMES[2:])
    parsed = parse_bash_args({**args, **nulls}, escalation=True)
    assert parsed == parse_bash_args(args, escalation=True)


def test_violations_come_in_declaration_order() -> None:
    args = {"workdir": 1, "timeoutMs": "x", "command": 2}
    with pytest.raises(ToolError) as caught:
        parse_bash_args(args, escalation=False)
    assert caught.value.message == (
        'invalid arguments: "command" must be a string; '
        'missing required property "description"; '
        '"timeoutMs" must be a number; "workdir" must be a string'
    )


@pytest.mark.parametrize("name", ["command", "workdir"])
def test_a_lone_surrogate_is_refused_with_the_argument_named(name: str) -> None:
    args = {"command": "ls", "description": "d", name: "a\ud800"}
    with pytest.raises(ToolError, match=f"invalid {name}: .*lone surrogate"):
        parse_bash_args(args, escalation=False)
