"""F. Presentation cards."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bashd.tools.cards import present_call, present_result

LS = {"command": "ls -la src", "description": "List files in src"}
TASK = {**LS, "run_in_background": True}


def text(value: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": value}]


def test_c094_terminal_without_cwd() -> None:
    assert present_call("bash", LS) == {
        "card": "terminal",
        "title": "ls -la src",
        "description": "List files in src",
    }


@pytest.mark.parametrize("workdir", ["/tmp/x", "sub"])
def test_c095_cwd_verbatim(workdir: str) -> None:
    card = present_call("bash", {**LS, "workdir": workdir})
    assert card is not None
    assert card["cwd"] == workdir


def test_c096_background_call_is_generic() -> None:
    assert present_call("bash", TASK) == {
        "card": "generic",
        "title": "ls -la src",
        "kind": "execute",
        "rawInput": "ls -la src",
        "content": [{"type": "text", "text": "List files in src"}],
    }


@pytest.mark.parametrize(
    ("output", "status"),
    [
        pytest.param("oops\n[exit code: 3]", {"exitCode": 3}, id="c097"),
        pytest.param(
            "gone\n[killed by signal: SIGKILL]", {"signal": "SIGKILL"}, id="c098"
        ),
        pytest.param("[exit code: 5]", {"exitCode": 0}, id="c099"),
        pytest.param(
            "(no output)\n[timed out after 100ms]", {"exitCode": 0}, id="c101"
        ),
        pytest.param("x\n[exit code: 1]\n\n", {"exitCode": 0}, id="blank-lines-after"),
        pytest.param("x\n[exit code: " + "9" * 5000 + "]", {"exitCode": 0}, id="huge"),
    ],
)
def test_c097_to_c101_exit_status(output: str, status: dict[str, object]) -> None:
    assert present_result("bash", LS, text(output)) == {
        "card": "terminal",
        "output": output,
        **status,
    }


def test_c102_background_acknowledgement_is_fenced() -> None:
    assert present_result("bash", TASK, text("started background task bash-1")) == {
        "card": "generic",
        "content": text("```console\nstarted background task bash-1\n```"),
    }


def test_c103_an_error_is_fenced_and_has_no_exit() -> None:
    card = present_result("bash", LS, text("Error: no\n\n"), is_error=True)
    assert card == {"card": "generic", "content": text("```console\nError: no\n```")}


@pytest.mark.parametrize(
    "content", [[{"type": "image", "data": ""}], [], [*text("a"), *text("b")], None]
)
def test_c104_other_content_has_no_card(content: object) -> None:
    assert present_result("bash", LS, content) is None


def test_c105_older_arguments_have_no_card() -> None:
    assert present_call("bash", {"command": "ls"}) is None
    assert present_result("bash", {"command": "ls"}, text("x")) is None


@pytest.mark.parametrize(
    ("tool", "title"),
    [
        ("bash_output", "Read output from background task bash-3"),
        ("bash_kill", "Kill background task bash-3"),
    ],
)
def test_c106_task_tools(tool: str, title: str) -> None:
    args = {"task_id": "bash-3"}
    assert present_call(tool, args) == {
        "card": "generic",
        "title": title,
        "kind": "execute",
        "rawInput": "bash-3",
    }
    assert present_result(tool, args, text("x")) is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
arguments = json_values | st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(
        ("command", "description", "workdir", "run_in_background"), json_values
    ),
)


@given(st.sampled_from(["bash", "bash_output", "nope"]), arguments, json_values)
def test_cards_never_raise(name: str, args: object, content: object) -> None:
    present_call(name, args)
    present_result(name, args, content)
