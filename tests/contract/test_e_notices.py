"""E. Completion notices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bashd.core.model import Mode, TaskStatus
from bashd.tools.agent import Agent, Agents
from bashd.tools.notices import watch
from tests.contract.world import HostFactory, World
from tests.support.scripted_executor import ScriptedExecutor, task_info
from tests.support.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from bashd.core.model import TaskInfo

pytestmark = pytest.mark.anyio

SOURCE = {"kind": "plugin", "plugin": "tool-bash"}


def finished(task_id: str, status: str) -> str:
    return (
        f"background bash task {task_id} finished [status: {status}]. "
        "Read its output with bash_output."
    )


async def test_c084_c085_c093_one_notice_found_by_session_id(
    executor_factory: HostFactory,
) -> None:
    async with executor_factory() as host:
        world = World(host)
        caller = await world.session(key="a key that is no session id")
        task_id = await world.start("true", caller)
        await world.settled(task_id, caller)
    assert caller.notices == [(finished(task_id, "completed, exit code: 0"), SOURCE)]
    # The notice is context for later: it did not open a call of its own.
    assert not caller.agent.in_call


async def test_a_killed_task_gives_one_notice(executor_factory: HostFactory) -> None:
    async with executor_factory() as host:
        world = World(host)
        caller = await world.session()
        task_id = await world.start("echo up; sleep 60", caller)

        async def up() -> bool:
            return "up" in (await world.output(task_id, caller)).text

        await until(up)
        await world.kill(task_id, caller)
        await world.settled(task_id, caller)
    assert [text for text, _ in caller.notices] == [
        finished(task_id, "killed by SIGTERM")
    ]


async def test_a_failed_spawn_gives_a_notice(executor_factory: HostFactory) -> None:
    async with executor_factory() as host:
        world = World(host)
        caller = await world.session()
        task_id = await world.start("true", caller, workdir="/nonexistent-bashd")
        await world.settled(task_id, caller)
    assert [text for text, _ in caller.notices] == [finished(task_id, "killed")]


async def test_c086_nobody_live_no_notice(executor_factory: HostFactory) -> None:
    async with executor_factory() as host:
        world = World(host)
        gone = await world.session(live=False)
        task_id = await world.start("true", gone)
        await world.settled(task_id, gone)
    assert gone.notices == []


async def test_c087_no_owner_no_notice(executor_factory: HostFactory) -> None:
    async with executor_factory() as host:
        world = World(host)
        bystander = await world.session()
        task_id = await world.start("true")
        await world.settled(task_id)
    assert bystander.notices == []


def raising_agent(session_id: str, message: str) -> Agent:
    def inject(_text: str, _source: dict[str, str]) -> None:
        raise RuntimeError(message)

    return Agent(session_id, inject=inject)


def agents_raising(message: str) -> Agents:
    agents = Agents()
    agents.add("x", raising_agent("s", message))
    return agents


SETTLED = task_info(owner="s", status=TaskStatus.COMPLETED, exit_code=0)


async def test_c088_a_disposed_agent_is_no_failure() -> None:
    executor = ScriptedExecutor()
    watch(executor, agents_raising('agent "x" is disposed'))
    executor.finish(SETTLED)


async def test_c089_another_failure_reaches_the_notifier() -> None:
    executor = ScriptedExecutor()
    watch(executor, agents_raising("the log is full"))
    with pytest.raises(RuntimeError, match="the log is full"):
        executor.finish(SETTLED)


async def test_c089_a_failing_listener_starves_nobody(
    executor_factory: HostFactory, caplog: pytest.LogCaptureFixture
) -> None:
    async with executor_factory() as host:
        world = World(host)
        caller = await world.session(key="x")
        session_id = caller.agent.session_id
        world.agents.add("x", raising_agent(session_id, "the log is full"))
        heard: list[str] = []
        executor = world.executor(caller)
        world.tools(caller)
        executor.on_task_done(lambda task: heard.append(task.task_id))
        task_id = await world.start("true", caller)
        await world.settled(task_id, caller)
    assert heard == [task_id]
    assert "the log is full" in caplog.text


async def test_c088_a_disposed_agent_starves_nobody(
    executor_factory: HostFactory, caplog: pytest.LogCaptureFixture
) -> None:
    async with executor_factory() as host:
        world = World(host)
        caller = await world.session(key="x")
        gone = raising_agent(caller.agent.session_id, 'agent "x" is disposed')
        world.agents.add("x", gone)
        task_id = await world.start("true", caller)
        await world.settled(task_id, caller)
    assert "disposed" not in caplog.text


async def test_c091_no_notice_once_disposed(executor_factory: HostFactory) -> None:
    async with executor_factory() as host:
        world = World(host)
        caller = await world.session()
        await world.start("sleep 60", caller)
    assert caller.notices == []


async def test_c092_facts_are_there_when_a_listener_hears(
    executor_factory: HostFactory, workspace: Path
) -> None:
    heard: list[TaskInfo] = []
    async with executor_factory(
        root=str(workspace), cwd=str(workspace), sandbox_mode=Mode.READ_ONLY
    ) as host:
        world = World(host)
        caller = await world.session(cwd=str(workspace))
        world.executor(caller).on_task_done(heard.append)
        task_id = await world.start("touch f", caller)
        await world.settled(task_id, caller)
    (task,) = heard
    assert task.sandbox is not None
    assert (task.sandbox.mode, task.sandbox.denied) == (Mode.READ_ONLY, True)


async def test_after_unmounting_nobody_is_told() -> None:
    executor, told = ScriptedExecutor(), list[str]()
    agents = Agents()
    agents.add("x", Agent("s", inject=lambda text, _source: told.append(text)))
    stop = watch(executor, agents)
    stop()
    executor.finish(SETTLED)
    assert told == []
