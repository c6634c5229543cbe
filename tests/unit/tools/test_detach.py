"""A foreground command past its limit goes on in the background, whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from bashd.tools.agent import Agent
from bashd.tools.toolset import Call, Toolset
from tests.support.local_executor import LocalConfig, LocalExecutor
from tests.support.scripted_executor import ScriptedExecutor

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio


def bash(command: str, **args: object) -> dict[str, object]:
    return {"command": command, "description": "d", **args}


async def test_a_longer_command_becomes_a_task_and_loses_nothing(
    tmp_path: Path,
) -> None:
    agent = Agent("s", cwd=str(tmp_path))
    done = anyio.Event()
    async with LocalExecutor(LocalConfig()) as executor:
        toolset = Toolset()
        toolset.mount(executor)
        executor.on_task_done(lambda _task: done.set())
        result = await toolset.call(
            "bash",
            bash("echo early; until [ -e go ]; do sleep 0.02; done; echo late"),
            Call(agent=agent, foreground_limit_ms=100),
        )
        assert result.text == (
            "command still running after 100ms; it goes on as background task bash-1. "
            "Read its output with bash_output, stop it with bash_kill."
        )
        assert (result.detached, result.task_id) == (True, "bash-1")
        (tmp_path / "go").touch()
        await done.wait()
        call = Call(agent=agent)
        read = await toolset.call("bash_output", {"task_id": "bash-1"}, call)
        stranger = await toolset.call("bash_output", {"task_id": "bash-1"})
    assert read.text == "early\nlate\n[status: completed, exit code: 0]"
    assert stranger.text == "Error: task bash-1 belongs to another session"


async def test_a_shorter_command_stays_in_the_foreground() -> None:
    async with LocalExecutor(LocalConfig()) as executor:
        toolset = Toolset()
        toolset.mount(executor)
        call = Call(foreground_limit_ms=60_000)
        result = await toolset.call("bash", bash("echo quick; exit 3"), call)
        assert await executor.list() == []
    assert result.text == "quick\n[exit code: 3]"


async def test_the_timeout_still_applies_below_the_limit() -> None:
    async with LocalExecutor(LocalConfig()) as executor:
        toolset = Toolset()
        toolset.mount(executor)
        call = Call(foreground_limit_ms=60_000)
        result = await toolset.call("bash", bash("sleep 60", timeoutMs=50), call)
    assert "[timed out after 50ms]" in result.text


async def test_an_executor_that_cannot_detach_just_runs() -> None:
    executor, toolset = ScriptedExecutor(), Toolset()
    toolset.mount(executor)
    call = Call(foreground_limit_ms=1)
    result = await toolset.call("bash", bash("true"), call)
    assert result.text == "(no output)"
    assert len(executor.runs) == 1
