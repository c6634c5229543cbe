"""C. Background tasks."""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING

import anyio
import pytest

from bashd.core.abort import AbortSignal
from bashd.core.model import ExecRequest, Mode, SandboxFacts, TaskRead, TaskStatus
from bashd.tools.render import ESCALATION_HINT, render_read
from bashd.tools.toolset import Toolset
from tests.contract.world import HostFactory, World, local_host
from tests.support.scripted_executor import ScriptedExecutor, task_info

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio


def read(
    delta: str = "", *, lossy: bool = False, paths: tuple[str, ...] = (), **task: object
) -> TaskRead:
    info = task_info(**task)  # pyright: ignore[reportArgumentType]
    return TaskRead(delta, lossy, paths, info)


async def test_c052_ids_count_up(executor_factory: HostFactory) -> None:
    async with executor_factory() as host:
        world = World(host)
        texts = [
            (await world.bash("true", run_in_background=True)).text for _ in range(2)
        ]
    numbers = [
        int(match.group(1))
        for text in texts
        if (match := re.fullmatch(r"started background task bash-([0-9]+)", text))
    ]
    assert numbers == [numbers[0], numbers[0] + 1]


async def test_c052_a_fresh_executor_counts_from_one() -> None:
    async with local_host() as host:
        assert await World(host).start("true") == "bash-1"


async def test_c053_start_returns_at_once(executor_factory: HostFactory) -> None:
    async with executor_factory() as host:
        world = World(host)
        began = time.monotonic()
        task_id = await world.start("sleep 5")
        assert time.monotonic() - began < 1
        result = await world.output(task_id)
    assert result.text == "(no new output)\n[status: running]"


async def test_c054_no_timeout_in_the_background(executor_factory: HostFactory) -> None:
    async with executor_factory() as host:
        world = World(host)
        task_id = await world.start("sleep 0.4; echo late", timeoutMs=100)
        await world.settled(task_id)
        result = await world.output(task_id)
    assert result.text == "late\n[status: completed, exit code: 0]"


async def test_c055_reads_deliver_only_what_is_new(
    executor_factory: HostFactory, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "go")
    os.mkfifo(tmp_path / "said")
    async with executor_factory(cwd=str(tmp_path)) as host:
        world = World(host)
        task_id = await world.start("echo first; : > said; : < go; echo second")
        await anyio.to_thread.run_sync((tmp_path / "said").read_bytes)
        first = await world.output(task_id)
        await anyio.to_thread.run_sync((tmp_path / "go").write_bytes, b"")
        await world.settled(task_id)
        second = await world.output(task_id)
        third = await world.output(task_id)
    assert first.text == "first\n[status: running]"
    assert second.text == "second\n[status: completed, exit code: 0]"
    assert third.text == "(no new output)\n[status: completed, exit code: 0]"


@pytest.mark.parametrize(
    ("command", "text"),
    [
        pytest.param(
            "exit 4", "(no new output)\n[status: completed, exit code: 4]", id="c056"
        ),
        pytest.param(
            "printf out; echo err >&2",
            "out\n[stderr]\nerr\n[status: completed, exit code: 0]",
            id="c057",
        ),
        pytest.param(
            "echo err >&2",
            "[stderr]\nerr\n[status: completed, exit code: 0]",
            id="c058",
        ),
        pytest.param(
            "kill -TERM $$",
            "(no new output)\n[status: killed by SIGTERM]",
            id="died-of-its-own-signal",
        ),
    ],
)
async def test_c056_to_c058_texts(
    executor_factory: HostFactory, command: str, text: str
) -> None:
    async with executor_factory() as host:
        world = World(host)
        task_id = await world.start(command)
        await world.settled(task_id)
        result = await world.output(task_id)
    assert result.text == text
    assert not result.is_error


async def test_c059_a_lossy_read_names_the_whole_output(
    executor_factory: HostFactory,
) -> None:
    async with executor_factory(max_output_bytes=100) as host:
        world = World(host)
        task_id = await world.start("for i in {1..200}; do echo line-$i; done")
        await world.settled(task_id)
        result = await world.output(task_id)
        notice = "[some output was dropped from memory; full output: "
        assert notice in result.text
        path = result.text.partition(notice)[2].partition("]")[0]
        content = await anyio.Path(path).read_text()
    assert content.startswith("line-1\n")
    assert content.endswith("line-200\n")


async def test_c060_lossy_without_a_path() -> None:
    executor = ScriptedExecutor(read=read("tail", lossy=True))
    toolset = Toolset()
    toolset.mount(executor)
    result = await toolset.call("bash_output", {"task_id": "bash-1"})
    assert result.text == (
        "tail\n[some output was dropped from memory; full output: (unavailable)]\n"
        "[status: running]"
    )


async def test_c061_both_streams_overflow(executor_factory: HostFactory) -> None:
    async with executor_factory(max_output_bytes=100) as host:
        world = World(host)
        task_id = await world.start(
            "for i in {1..200}; do echo line-$i; echo line-$i >&2; done"
        )
        await world.settled(task_id)
        result = await world.output(task_id)
    assert result.text.count("dropped from memory") == 1
    listed = result.text.partition("full output: ")[2].partition("]")[0]
    stdout_path, stderr_path = listed.split(", ")
    assert "stdout" in stdout_path
    assert "stderr" in stderr_path


async def test_c063_c064_kill(executor_factory: HostFactory) -> None:
    async with executor_factory() as host:
        world = World(host)
        task_id = await world.start("sleep 60")
        # In the same cell and behind it: when this has ended, the task runs. One that
        # is killed before it begins has no signal to tell of.
        await world.call("bash", {"command": "true", "description": "wait for it"})
        first = await world.kill(task_id)
        second = await world.kill(task_id)
        between = await world.output(task_id)
        await world.settled(task_id)
        after = await world.output(task_id)
    assert first.text == f"killed background task {task_id}"
    assert second.text == f"task {task_id} had already finished"
    assert not second.is_error
    assert between.text.startswith("(no new output)\n[status: killed")
    assert after.text == "(no new output)\n[status: killed by SIGTERM]"


@pytest.mark.parametrize("tool", ["bash_output", "bash_kill"])
async def test_c066_unknown_task(executor_factory: HostFactory, tool: str) -> None:
    async with executor_factory() as host:
        result = await World(host).call(tool, {"task_id": "bash-999"})
    assert result.text == 'Error: unknown bash task "bash-999"'
    assert (result.is_error, result.code) == (True, "UNKNOWN_TASK")


async def test_c068_a_failed_spawn_is_read_from_the_task(
    executor_factory: HostFactory,
) -> None:
    async with executor_factory() as host:
        world = World(host)
        task_id = await world.start("true", workdir="/nonexistent-bashd")
        await world.settled(task_id)
        first = await world.output(task_id)
        second = await world.output(task_id)
    assert first.text.startswith("[stderr]\n")
    assert "spawn failed" in first.text
    assert first.text.endswith("[status: killed]")
    assert second.text == "(no new output)\n[status: killed]"


async def test_c070_the_task_outlives_its_call(executor_factory: HostFactory) -> None:
    abort = AbortSignal()
    async with executor_factory() as host:
        world = World(host)
        task_id = await world.start("sleep 0.2; echo survived", abort=abort)
        abort.abort()
        await world.settled(task_id)
        result = await world.output(task_id)
    assert result.text == "survived\n[status: completed, exit code: 0]"


async def test_c071_an_executors_own_signal_kills_the_task() -> None:
    # In process only: over a socket a signal counts until the task has its id.
    abort = AbortSignal()
    async with local_host() as host:
        world = World(host)
        executor = world.executor()
        world.tools()
        spec = executor.resolve(ExecRequest(command="sleep 60"))
        task = await executor.start(spec, abort=abort)
        abort.abort()
        await world.settled(task.task_id)
        settled = await executor.get(task.task_id)
    assert settled is not None
    assert (settled.status, settled.signal) == (TaskStatus.KILLED, "SIGTERM")


async def test_c072_tasks_stay_listed_in_order(executor_factory: HostFactory) -> None:
    async with executor_factory() as host:
        world = World(host)
        ids = [await world.start(f"echo {n}") for n in range(3)]
        for task_id in ids:
            await world.settled(task_id)
        listed = [task.task_id for task in await world.executor().list()]
        result = await world.output(ids[0])
    assert listed == ids
    assert result.text.startswith("0\n")


async def test_c073_one_cursor_for_all_readers(executor_factory: HostFactory) -> None:
    async with executor_factory() as host:
        world = World(host)
        first = await world.session()
        second = world.join(first.session)
        task_id = await world.start("for i in {1..400}; do echo $i; done", first)
        await world.settled(task_id, first)
        texts = [
            (await world.output(task_id, reader)).text
            for reader in (first, second, first)
        ]
    joined = "".join(t for text in texts for t in text.splitlines(keepends=True))
    numbers = [int(line) for line in joined.split() if line.isdigit()]
    assert numbers == list(range(1, 401))


DENIED = SandboxFacts(mode=Mode.READ_ONLY, denied=True)
DENIAL = "[sandbox: file access denied under read-only mode]"


def test_markers_follow_the_status_line() -> None:
    settled = read(status=TaskStatus.COMPLETED, exit_code=1, sandbox=DENIED)
    status = "(no new output)\n[status: completed, exit code: 1]\n"
    assert render_read(settled, escalation=False) == status + DENIAL
    assert (
        render_read(settled, escalation=True) == f"{status}{DENIAL}\n{ESCALATION_HINT}"
    )


def test_a_failed_runner_outranks_a_denial() -> None:
    facts = SandboxFacts(mode=Mode.READ_ONLY, runner_failed=True)
    settled = read(status=TaskStatus.COMPLETED, exit_code=1, sandbox=facts)
    assert render_read(settled, escalation=True).endswith(
        "\n[sandbox: the sandbox runner itself failed under read-only mode \u2014 the "
        "command did not run; this is a sandbox problem, not a command failure]"
    )


def test_a_running_task_carries_no_sandbox_marker() -> None:
    assert render_read(read("x", sandbox=DENIED), escalation=True) == (
        "x\n[status: running]"
    )


def test_completed_without_a_code_reads_as_zero() -> None:
    text = render_read(read(status=TaskStatus.COMPLETED), escalation=False)
    assert text == "(no new output)\n[status: completed, exit code: 0]"
