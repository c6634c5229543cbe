"""A. Schema, registration, validation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bashd.core.model import Mode
from bashd.tools.agent import Agent
from bashd.tools.approval import ApprovalService
from bashd.tools.toolset import Call, Toolset
from tests.contract.world import HostFactory, World
from tests.support.scripted_executor import ScriptedExecutor

if TYPE_CHECKING:
    from bashd.tools.approval import ApprovalRequest
    from bashd.tools.schemas import ToolSchema

pytestmark = pytest.mark.anyio

ALL_MODES = list(Mode)
PAIR = {"sandbox_permissions": "workspace-write", "justification": "Needs it."}


def mounted(
    mode: Mode | None = None, **kwargs: object
) -> tuple[Toolset, ScriptedExecutor]:
    executor = ScriptedExecutor(sandbox_mode=mode)
    toolset = Toolset(**kwargs)  # pyright: ignore[reportArgumentType]
    toolset.mount(executor)
    return toolset, executor


def bash_schema(toolset: Toolset) -> ToolSchema:
    return toolset.schemas()[0]


def properties(schema: ToolSchema) -> dict[str, dict[str, object]]:
    found = schema.parameters["properties"]
    assert isinstance(found, dict)
    return found


async def fail(toolset: Toolset, name: str, args: object) -> str:
    result = await toolset.call(name, args)
    assert result.is_error
    return result.text


async def test_c001_three_tools_in_order() -> None:
    toolset, _ = mounted()
    assert [s.name for s in toolset.schemas()] == ["bash", "bash_output", "bash_kill"]
    assert bash_schema(toolset).parameters["required"] == ["command", "description"]
    assert "additionalProperties" not in bash_schema(toolset).parameters


async def test_c002_no_escalation_fields_without_a_sandbox() -> None:
    schema = bash_schema(mounted()[0])
    assert not {"sandbox_permissions", "justification"} & set(properties(schema))
    assert "sanctioned exception" not in schema.description


@pytest.mark.parametrize("default", ALL_MODES)
async def test_c003_c005_full_target_vocabulary_under_any_default(
    default: Mode,
) -> None:
    schema = bash_schema(mounted(default)[0])
    assert properties(schema)["sandbox_permissions"]["enum"] == [
        "workspace-write",
        "danger-full-access",
    ]
    assert list(properties(schema))[-2:] == ["sandbox_permissions", "justification"]
    assert "sanctioned exception" in schema.description


async def test_c006_one_prompt_section_and_no_mode_in_it() -> None:
    toolset, _ = mounted(Mode.READ_ONLY)
    (section,) = await toolset.prompt_sections(Agent("s"))
    assert (section.name, section.order) == ("tool:bash", 105)
    assert "[exit code: N]" in section.text
    assert not any(str(mode) in section.text for mode in Mode)


async def test_c007_no_executor_no_tools() -> None:
    toolset = Toolset()
    assert toolset.schemas() == ()
    unmount = toolset.mount(ScriptedExecutor())
    assert len(toolset.schemas()) == 3
    unmount()
    assert toolset.schemas() == ()
    assert await fail(toolset, "bash", {}) == 'Error: unknown tool "bash"'


async def test_c008_missing_arguments_are_all_named() -> None:
    result = await mounted()[0].call("bash", {})
    assert result.text == (
        'Error: invalid arguments: missing required property "command"; '
        'missing required property "description"'
    )
    assert (result.is_error, result.name, result.code) == (
        True,
        "ToolArgsError",
        "INVALID_ARGS",
    )


async def test_c008_null_counts_as_missing() -> None:
    text = await fail(mounted()[0], "bash", {"command": None, "description": "d"})
    assert text == 'Error: invalid arguments: missing required property "command"'


async def test_c009_command_of_another_type() -> None:
    text = await fail(mounted()[0], "bash", {"command": 42, "description": "d"})
    assert '"command" must be a string' in text


@pytest.mark.parametrize(
    ("extra", "violation"),
    [
        ({"timeoutMs": "soon"}, '"timeoutMs" must be a number'),
        ({"timeoutMs": True}, '"timeoutMs" must be a number'),
        ({"workdir": 7}, '"workdir" must be a string'),
        ({"run_in_background": "yes"}, '"run_in_background" must be a boolean'),
    ],
)
async def test_c010_optional_arguments_of_another_type(
    extra: dict[str, object], violation: str
) -> None:
    args = {"command": "x", "description": "d", **extra}
    text = await fail(mounted()[0], "bash", args)
    assert text == f"Error: invalid arguments: {violation}"


async def test_arguments_that_are_no_object() -> None:
    text = await fail(mounted()[0], "bash", ["ls"])
    assert text == 'Error: invalid arguments: "arguments" must be an object'


async def test_c011_blank_command() -> None:
    text = await fail(mounted()[0], "bash", {"command": "  ", "description": "d"})
    assert text == "Error: invalid command: expected a non-empty string"


async def test_c012_blank_description() -> None:
    text = await fail(mounted()[0], "bash", {"command": "x", "description": "   "})
    assert text == "Error: invalid description: expected a non-empty string"


@pytest.mark.parametrize(
    ("value", "printed"),
    [(-1, "-1"), (0, "0"), (-0.5, "-0.5"), (float("nan"), "null"), (1e400, "null")],
)
async def test_c013_timeout_that_is_not_positive(value: float, printed: str) -> None:
    toolset, executor = mounted()
    args = {"command": "x", "description": "d", "timeoutMs": value}
    assert await fail(toolset, "bash", args) == (
        f"Error: invalid timeoutMs: expected a positive number, got {printed}"
    )
    assert executor.requests == []


async def test_c014_task_id_is_checked() -> None:
    toolset, _ = mounted()
    missing = await fail(toolset, "bash_output", {})
    assert 'missing required property "task_id"' in missing
    typed = await fail(toolset, "bash_output", {"task_id": 9})
    assert '"task_id" must be a string' in typed
    empty = await fail(toolset, "bash_kill", {"task_id": ""})
    assert empty == 'Error: invalid task_id: expected a string, got ""'


async def test_c015_unknown_tool() -> None:
    result = await mounted()[0].call("nope", {})
    assert result.text == 'Error: unknown tool "nope"'
    assert (result.is_error, result.name, result.code) == (
        True,
        "ToolNotFoundError",
        "UNKNOWN_TOOL",
    )


@pytest.mark.parametrize("background", [False, True])
async def test_c016_only_named_arguments_reach_the_request(*, background: bool) -> None:
    toolset, executor = mounted()
    args = {
        "command": "true",
        "description": "d",
        "run_in_background": background,
        "env": {"A": "model"},
        "stdin": "model",
        "owner": "model",
        "stdoutMaxBytes": 7,
        "managed_env": {"BASHD_X": "model"},
        "sandboxMode": "danger-full-access",
    }
    result = await toolset.call("bash", args, Call(agent=Agent("session-1")))
    assert not result.is_error
    (request,) = executor.requests
    assert "model" not in repr(request)
    assert (request.env, request.stdin, request.managed_env) == (None, None, None)
    assert (request.stdout_max_bytes, request.sandbox_mode) == (None, None)
    assert request.owner == ("session-1" if background else None)


async def test_c017_mode_outside_the_vocabulary() -> None:
    args = {"command": "x", "description": "d", **PAIR}
    args["sandbox_permissions"] = "read-only"
    text = await fail(mounted(Mode.READ_ONLY)[0], "bash", args)
    assert (
        '"sandbox_permissions" must be one of ["workspace-write","danger-full-access"]'
        in text
    )


@pytest.mark.parametrize(
    ("drop", "message"),
    [
        ("justification", "sandbox_permissions requires a justification"),
        (
            "sandbox_permissions",
            "justification is only valid together with sandbox_permissions",
        ),
    ],
)
async def test_c018_c019_half_an_escalation(drop: str, message: str) -> None:
    args = {"command": "x", "description": "d", **PAIR}
    del args[drop]
    text = await fail(mounted(Mode.READ_ONLY)[0], "bash", args)
    assert text == f"Error: invalid escalation: {message}"


async def test_c020_c021_validation_comes_before_anyone_is_asked() -> None:
    asked: list[ApprovalRequest] = []
    service = ApprovalService()
    service.register(lambda request: asked.append(request) or "allowed-once")
    toolset, executor = mounted(Mode.READ_ONLY, approvals=service)
    call = Call(agent=Agent("s"))
    blank = {"command": "x", "description": "d", **PAIR, "justification": "   "}
    result = await toolset.call("bash", blank, call)
    assert result.text == "Error: invalid justification: expected a non-empty sentence"
    result = await toolset.call(
        "bash", {"command": " ", "description": "d", **PAIR}, call
    )
    assert "invalid command" in result.text
    assert asked == []
    assert executor.requests == []


async def test_descriptions_are_the_same_bytes_every_time() -> None:
    first, second = mounted(Mode.READ_ONLY)[0], mounted(Mode.WORKSPACE_WRITE)[0]
    assert first.schemas() == second.schemas()


async def test_c051_description_changes_nothing(
    executor_factory: HostFactory,
) -> None:
    async with executor_factory() as host:
        result = await World(host).bash(
            "echo same", description="$(touch /nowhere); `false` | \"' ${x}"
        )
    assert result.text == "same\n"
