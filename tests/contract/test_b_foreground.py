"""B. Foreground text shaping."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import anyio
import pytest

from bashd.core.abort import AbortSignal
from bashd.core.model import Mode, SandboxFacts, StreamOutput
from bashd.tools.render import ESCALATION_HINT, render_run
from tests.contract.world import Caller, HostFactory, World
from tests.support.local_executor import is_running
from tests.support.scripted_executor import run_result
from tests.support.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

DENIED = SandboxFacts(mode=Mode.READ_ONLY, denied=True)


@pytest.mark.parametrize(
    ("command", "text"),
    [
        pytest.param("echo hello", "hello\n", id="c022"),
        pytest.param("true", "(no output)", id="c023"),
        pytest.param("echo out; echo err >&2", "out\n[stderr]\nerr\n", id="c024"),
        pytest.param("echo err >&2", "[stderr]\nerr\n", id="c025"),
        pytest.param("printf out; printf err >&2", "out\n[stderr]\nerr", id="c026"),
        pytest.param("echo failing; exit 3", "failing\n[exit code: 3]", id="c027"),
        pytest.param("printf x; exit 7", "x\n[exit code: 7]", id="c028"),
        pytest.param("exit 9", "(no output)\n[exit code: 9]", id="c029"),
        pytest.param(
            "kill -KILL $$", "(no output)\n[killed by signal: SIGKILL]", id="c034"
        ),
    ],
)
async def test_c022_to_c034_texts(
    executor_factory: HostFactory, command: str, text: str
) -> None:
    async with executor_factory() as host:
        result = await World(host).bash(command)
    assert result.text == text
    assert not result.is_error


async def test_c030_timeout_then_signal(executor_factory: HostFactory) -> None:
    async with executor_factory() as host:
        result = await World(host).bash("sleep 60", timeoutMs=100)
    assert result.text == (
        "(no output)\n[timed out after 100ms]\n[killed by signal: SIGTERM]"
    )
    assert not result.is_error


async def test_c032_the_marker_has_the_effective_timeout(
    executor_factory: HostFactory,
) -> None:
    async with executor_factory(max_timeout_ms=200) as host:
        result = await World(host).bash("sleep 60", timeoutMs=99999.0)
    assert "[timed out after 200ms]" in result.text


async def test_timeout_marker_stands_alone_when_the_trap_exits_with_zero(
    executor_factory: HostFactory,
) -> None:
    async with executor_factory() as host:
        result = await World(host).bash(
            "trap 'exit 0' TERM; sleep 60 & wait", timeoutMs=300
        )
    assert result.text == "(no output)\n[timed out after 300ms]"


def test_c035_denial_precedes_the_exit_code() -> None:
    text = render_run(run_result(exit_code=1, sandbox=DENIED), escalation=False)
    assert text.endswith(
        "[sandbox: file access denied under read-only mode]\n[exit code: 1]"
    )
    assert "escalation" not in text


def test_c036_hint_between_denial_and_exit_code() -> None:
    text = render_run(run_result(exit_code=1, sandbox=DENIED), escalation=True)
    assert text == (
        "(no output)\n"
        "[sandbox: file access denied under read-only mode]\n"
        "[sandbox: escalation available \u2014 retry this exact command once with "
        "sandbox_permissions (the narrowest wider mode that suffices) + "
        "justification; the approval prompt asks the user]\n"
        "[exit code: 1]"
    )
    assert ESCALATION_HINT in text


def test_c038_no_sandbox_line_without_a_denial() -> None:
    facts = SandboxFacts(mode=Mode.READ_ONLY)
    text = render_run(run_result(exit_code=2, sandbox=facts), escalation=True)
    assert "[sandbox:" not in text


def test_c039_truncated_without_a_path() -> None:
    tail = StreamOutput("tail", truncated=True)
    text = render_run(run_result(stdout=tail), escalation=False)
    assert text == "tail\n[output truncated; full output: (unavailable)]"


def test_truncation_notice_stays_in_its_own_section() -> None:
    out = StreamOutput("o\n", truncated=True, spill_path="/o.log")
    err = StreamOutput("e", truncated=True, spill_path="/e.log")
    text = render_run(run_result(stdout=out, stderr=err), escalation=False)
    assert text == (
        "o\n\n[output truncated; full output: /o.log]\n"
        "[stderr]\ne\n[output truncated; full output: /e.log]"
    )


async def test_c041_only_the_tail_is_kept(executor_factory: HostFactory) -> None:
    async with executor_factory(max_output_bytes=100) as host:
        result = await World(host).bash(
            "for i in {1..100}; do printf 'line-%04d\\n' $i; done"
        )
    assert "line-0100" in result.text
    assert "[output truncated; full output: /" in result.text
    assert "line-0001" not in result.text


async def test_c042_to_c044_workdir(executor_factory: HostFactory) -> None:
    async with executor_factory() as host:
        world = World(host)
        plain = await world.bash("pwd", workdir="/tmp")
        assert plain.text == "/tmp\n"
        usr = await world.session(cwd="/usr")
        relative = await world.bash("pwd -P", usr, workdir="share")
        assert relative.text == "/usr/share\n"
        root = await world.session(cwd="/")
        absolute = await world.bash("pwd", root, workdir="/tmp")
        assert absolute.text == "/tmp\n"


async def test_c045_each_session_its_own_directory(
    executor_factory: HostFactory,
) -> None:
    async with executor_factory() as host:
        world = World(host)
        callers = [await world.session(cwd=cwd) for cwd in ("/usr", "/tmp")]
        texts: dict[str | None, str] = {}

        async def where(caller: Caller) -> None:
            result = await world.bash("sleep 0.1; pwd", caller)
            texts[caller.agent.cwd] = result.text

        async with anyio.create_task_group() as group:
            for caller in callers:
                group.start_soon(where, caller)
    assert texts == {"/usr": "/usr\n", "/tmp": "/tmp\n"}


async def test_c046_without_a_session_the_configured_directory(
    executor_factory: HostFactory, tmp_path: Path
) -> None:
    async with executor_factory(cwd=str(tmp_path)) as host:
        result = await World(host).bash("pwd")
    assert result.text == f"{tmp_path}\n"


async def test_c047_missing_workdir_is_a_start_failure(
    executor_factory: HostFactory,
) -> None:
    async with executor_factory() as host:
        result = await World(host).bash("true", workdir="/nonexistent-bashd")
    assert result.is_error
    assert "ENOENT" in result.text or "No such file" in result.text
    assert result.code == "START_FAILED"


async def test_c048_abort_ends_the_process_group(
    executor_factory: HostFactory, tmp_path: Path
) -> None:
    abort, pids = AbortSignal(), tmp_path / "pids"
    os.mkfifo(pids)
    async with executor_factory(cwd=str(tmp_path)) as host:

        async def abort_once_running() -> None:
            # Opening a fifo waits for the other end: the command is then running.
            said = await anyio.to_thread.run_sync(pids.read_text)
            running.extend(int(pid) for pid in said.split())
            abort.abort()

        running: list[int] = []
        async with anyio.create_task_group() as group:
            group.start_soon(abort_once_running)
            result = await World(host).bash(
                f"sleep 60 & echo $$ $! > {pids}; wait", abort=abort
            )
            assert result.text == "Error: command aborted"
            assert (result.is_error, result.code) == (True, "TOOL_ABORTED")
    assert len(running) == 2

    async def all_gone() -> bool:
        return not any(is_running(pid) for pid in running)

    await until(all_gone)


async def test_c049_a_call_aborted_before_never_starts(
    executor_factory: HostFactory, tmp_path: Path
) -> None:
    abort = AbortSignal()
    abort.abort("changed my mind")
    async with executor_factory(cwd=str(tmp_path)) as host:
        result = await World(host).bash("touch marker", abort=abort)
    assert result.is_error
    assert "aborted before spawn: changed my mind" in result.text
    assert not await anyio.Path(tmp_path / "marker").exists()


async def test_c050_no_state_survives_a_call(
    executor_factory: HostFactory, tmp_path: Path
) -> None:
    async with executor_factory(cwd=str(tmp_path)) as host:
        world = World(host)
        await world.bash("cd /tmp; export A=1")
        result = await world.bash("pwd; echo ${A-unset}")
    assert result.text == f"{tmp_path}\nunset\n"
