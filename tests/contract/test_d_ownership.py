"""D. Ownership fence."""

from __future__ import annotations

import pytest

from bashd.tools.agent import Agent
from bashd.tools.toolset import Call, Toolset
from tests.contract.world import HostFactory, World
from tests.support.scripted_executor import ScriptedExecutor, task_info

pytestmark = pytest.mark.anyio


async def test_c074_another_session_is_refused(executor_factory: HostFactory) -> None:
    async with executor_factory() as host:
        world = World(host)
        owner, other = await world.session(), await world.session()
        task_id = await world.start("sleep 60", owner)
        for tool in ("bash_output", "bash_kill"):
            result = await world.call(tool, {"task_id": task_id}, other)
            assert result.text == f"Error: task {task_id} belongs to another session"
            assert result.is_error
        still = await world.output(task_id, owner)
        assert still.text == "(no new output)\n[status: running]"
        killed = await world.kill(task_id, owner)
        assert killed.text == f"killed background task {task_id}"


async def test_c075_a_caller_without_a_session_is_refused(
    executor_factory: HostFactory,
) -> None:
    async with executor_factory() as host:
        world = World(host)
        owner = await world.session()
        task_id = await world.start("sleep 60", owner)
        result = await world.output(task_id)
    assert result.text == f"Error: task {task_id} belongs to another session"


async def test_c076_a_task_without_an_owner_is_open(
    executor_factory: HostFactory,
) -> None:
    async with executor_factory() as host:
        world = World(host)
        anyone = await world.session()
        task_id = await world.start("sleep 60")
        assert not (await world.output(task_id)).is_error
        assert not (await world.output(task_id, anyone)).is_error
        killed = await world.kill(task_id, anyone)
    assert killed.text == f"killed background task {task_id}"


async def test_c077_the_token_counts_not_the_agent(
    executor_factory: HostFactory,
) -> None:
    async with executor_factory() as host:
        world = World(host)
        first = await world.session()
        second = world.join(first.session)
        task_id = await world.start("echo mine", first)
        await world.settled(task_id, first)
        result = await world.output(task_id, second)
    assert result.text == "mine\n[status: completed, exit code: 0]"


async def test_c078_c082_ownership_outlasts_the_task_and_guards_the_cursor(
    executor_factory: HostFactory,
) -> None:
    async with executor_factory() as host:
        world = World(host)
        owner, other = await world.session(), await world.session()
        task_id = await world.start("echo mine", owner)
        await world.settled(task_id, owner)
        assert (await world.output(task_id, other)).is_error
        result = await world.output(task_id, owner)
    assert result.text == "mine\n[status: completed, exit code: 0]"


async def test_c083_a_foreground_run_is_no_task(executor_factory: HostFactory) -> None:
    async with executor_factory() as host:
        world = World(host)
        caller = await world.session()
        await world.bash("true", caller)
        assert await world.executor(caller).list() == []


async def test_an_empty_token_is_an_owner() -> None:
    executor = ScriptedExecutor(tasks={"bash-1": task_info(owner="")})
    toolset = Toolset()
    toolset.mount(executor)
    args = {"task_id": "bash-1"}
    assert (await toolset.call("bash_kill", args)).is_error
    assert (await toolset.call("bash_kill", args, Call(agent=Agent("x")))).is_error
    mine = await toolset.call("bash_kill", args, Call(agent=Agent("")))
    assert mine.text == "killed background task bash-1"
