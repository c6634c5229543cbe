"""A once more, over executors that run commands: in this process and over the socket."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from bashd.core.model import Mode
from bashd.tools.approval import ApprovalService
from bashd.tools.toolset import Toolset
from tests.contract.world import Caller, HostFactory, World

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from bashd.tools.approval import ApprovalRequest

pytestmark = pytest.mark.anyio

PAIR = {"sandbox_permissions": "workspace-write", "justification": "Needs it."}
NAMES = ["bash", "bash_output", "bash_kill"]


@asynccontextmanager
async def sandboxed(
    factory: HostFactory, workspace: Path, mode: Mode = Mode.READ_ONLY, **kwargs: Any
) -> AsyncGenerator[tuple[World, Caller]]:
    """Open a session that confines its commands."""
    folder = str(workspace)
    async with factory(root=folder, cwd=folder, sandbox_mode=mode) as host:
        world = World(host, **kwargs)
        yield world, await world.session(cwd=folder)


def properties(tools: Toolset) -> dict[str, Any]:
    found = tools.schemas()[0].parameters["properties"]
    assert isinstance(found, dict)
    return found


async def test_c001_c003_c005_c006_what_is_registered(
    executor_factory: HostFactory, workspace: Path
) -> None:
    for default in Mode:
        async with sandboxed(executor_factory, workspace, default) as (world, caller):
            tools = world.tools(caller)
            assert [schema.name for schema in tools.schemas()] == NAMES
            bash = tools.schemas()[0]
            assert bash.parameters["required"] == ["command", "description"]
            assert "sanctioned exception" in bash.description
            offered = properties(tools)["sandbox_permissions"]["enum"]
            assert offered == ["workspace-write", "danger-full-access"]
            (section,) = await tools.prompt_sections(caller.agent)
            assert (section.name, section.order) == ("tool:bash", 105)
            assert not any(str(mode) in section.text for mode in Mode)


async def test_c007_no_executor_no_tools(executor_factory: HostFactory) -> None:
    async with executor_factory() as host:
        tools = Toolset()
        assert tools.schemas() == ()
        unmount = tools.mount(host.executor)
        assert [schema.name for schema in tools.schemas()] == NAMES
        unmount()
        assert tools.schemas() == ()


REFUSED: list[tuple[str, object, str]] = [
    (
        "bash",
        {},
        'invalid arguments: missing required property "command"; missing required'
        ' property "description"',
    ),
    (
        "bash",
        {"command": 42, "description": "d"},
        'invalid arguments: "command" must be a string',
    ),
    (
        "bash",
        {"command": "touch f", "description": "d", "timeoutMs": "soon"},
        'invalid arguments: "timeoutMs" must be a number',
    ),
    (
        "bash",
        {"command": "touch f", "description": "d", "workdir": 7},
        'invalid arguments: "workdir" must be a string',
    ),
    (
        "bash",
        {"command": "touch f", "description": "d", "run_in_background": "yes"},
        'invalid arguments: "run_in_background" must be a boolean',
    ),
    (
        "bash",
        {"command": "  ", "description": "d"},
        "invalid command: expected a non-empty string",
    ),
    (
        "bash",
        {"command": "touch f", "description": "   "},
        "invalid description: expected a non-empty string",
    ),
    (
        "bash",
        {"command": "touch f", "description": "d", "timeoutMs": -1},
        "invalid timeoutMs: expected a positive number, got -1",
    ),
    (
        "bash",
        {"command": "touch f", "description": "d", "timeoutMs": 0},
        "invalid timeoutMs: expected a positive number, got 0",
    ),
    ("bash_output", {}, 'invalid arguments: missing required property "task_id"'),
    (
        "bash_output",
        {"task_id": 9},
        'invalid arguments: "task_id" must be a string',
    ),
    ("bash_kill", {"task_id": ""}, 'invalid task_id: expected a string, got ""'),
    ("nope", {}, 'unknown tool "nope"'),
    (
        "bash",
        {
            "command": "touch f",
            "description": "d",
            **PAIR,
            "sandbox_permissions": "read-only",
        },
        'invalid arguments: "sandbox_permissions" must be one of'
        ' ["workspace-write","danger-full-access"]',
    ),
    (
        "bash",
        {
            "command": "touch f",
            "description": "d",
            "sandbox_permissions": "workspace-write",
        },
        "invalid escalation: sandbox_permissions requires a justification",
    ),
    (
        "bash",
        {"command": "touch f", "description": "d", "justification": "x"},
        "invalid escalation: justification is only valid together with"
        " sandbox_permissions",
    ),
    (
        "bash",
        {"command": "touch f", "description": "d", **PAIR, "justification": "   "},
        "invalid justification: expected a non-empty sentence",
    ),
    (
        "bash",
        {"command": " ", "description": "d", **PAIR},
        "invalid command: expected a non-empty string",
    ),
]


async def test_c008_to_c021_a_refused_call_asks_nobody_and_runs_nothing(
    executor_factory: HostFactory, workspace: Path
) -> None:
    asked: list[ApprovalRequest] = []
    service = ApprovalService()
    service.register(lambda request: asked.append(request) or "allowed-once")
    opened = sandboxed(
        executor_factory, workspace, Mode.WORKSPACE_WRITE, approvals=service
    )
    async with opened as (world, caller):
        for name, args, text in REFUSED:
            result = await world.call(name, args, caller)
            assert (result.text, result.is_error) == (f"Error: {text}", True)
        assert await world.executor(caller).list() == []
    assert asked == []
    assert os.listdir(workspace) == []  # noqa: PTH208 - nor does it block


@pytest.mark.parametrize("background", [False, True])
async def test_c016_only_named_arguments_reach_the_command(
    executor_factory: HostFactory, workspace: Path, *, background: bool
) -> None:
    opened = sandboxed(executor_factory, workspace)
    async with opened as (world, caller):
        result = await world.bash(
            'cat; echo "${A-unset} ${BASHD_X-unset}"; touch f 2>/dev/null',
            caller,
            run_in_background=background,
            env={"A": "model"},
            stdin="model",
            owner="model",
            stdoutMaxBytes=1,
            managed_env={"BASHD_X": "model"},
            sandboxMode="danger-full-access",
        )
        if background:
            task_id = result.text.removeprefix("started background task ")
            await world.settled(task_id, caller)
            owner = await world.executor(caller).owner_of(task_id)
            assert owner == caller.session.session_id
            result = await world.output(task_id, caller)
    assert result.text.startswith("unset unset\n")
    assert not (workspace / "f").exists()
