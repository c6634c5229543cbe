"""Who is asked when a model wants more, over a real daemon and with the real commands."""

from __future__ import annotations

import json
import subprocess
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream

from tests.mcp.daemon_desk import WRITE, decisions, desk
from tests.mcp.serving import User, texts
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from tests.support.daemons import RunningDaemon

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

REFUSED = 'Error: the user rejected escalating this command to "workspace-write"'
CANCELLED = 'Error: approval for escalating to "workspace-write" was cancelled'
NOBODY = (
    'Error: sandbox escalation to "workspace-write" requires approval, but no approval '
    "channel is available"
)
HOSTILE = "touch f # \x1b[2J\u202e\n# Reason: harmless"


class Watcher:
    """`bashd approvals --watch --json` and who reads it."""

    def __init__(self, daemon: RunningDaemon, lines: BufferedByteReceiveStream) -> None:
        self._daemon, self._lines = daemon, lines

    async def hear(self, kind: str) -> Any:
        """Return what the next line says, which must be of this kind."""
        line = await self._lines.receive_until(b"\n", 1 << 20)
        ((word, event),) = json.loads(line).items()
        assert word == kind
        return event

    async def answer(self, verb: str, approval_id: str) -> None:
        done = await anyio.to_thread.run_sync(self._daemon.cli, verb, approval_id)
        assert (done.returncode, done.stderr) == (0, "")


@asynccontextmanager
async def watching(daemon: RunningDaemon) -> AsyncGenerator[Watcher]:
    process = await anyio.open_process(
        daemon.caller_argv("approvals", "--watch", "--json"),
        env=daemon.caller_env(),
        cwd=daemon.caller.home,
        stdin=subprocess.DEVNULL,
        stderr=None,
    )
    async with process:
        assert process.stdout is not None
        watcher = Watcher(daemon, BufferedByteReceiveStream(process.stdout))
        # Before this, nobody would be asked.
        assert await watcher.hear("watching")
        try:
            yield watcher
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("verb", "text"), [("approve", "(no output)"), ("reject", REFUSED)]
)
async def test_a_watcher_answers_for_a_client_that_cannot_ask(
    daemon: RunningDaemon, folder: Path, era: str, verb: str, text: str
) -> None:
    seen: list[dict[str, Any]] = []
    session_id = ""
    async with (
        desk(daemon, "--cwd", str(folder), user=User(None), era=era) as at,
        watching(daemon) as watcher,
        anyio.create_task_group() as group,
    ):
        session_id = await at.session_id()

        async def person() -> None:
            seen.append(await watcher.hear("asked"))
            await watcher.answer(verb, seen[0]["approval_id"])
            seen.append(await watcher.hear("settled"))

        group.start_soon(person)
        result = await at.bash(HOSTILE, workdir=".", **WRITE)
        assert texts(result) == [text]
        assert decisions(daemon, session_id) == [outcome_of(verb)]
    assert (folder / "f").exists() == (verb == "approve")
    assert (seen[0]["command"], seen[0]["mode"], seen[0]["session_id"]) == (
        HOSTILE,
        "workspace-write",
        session_id,
    )
    assert seen[0]["workdir"] == f"{folder}/."
    assert seen[0]["reason"] == "escalate sandbox to workspace-write: Tests need it."
    assert seen[1]["outcome"] == outcome_of(verb)


def outcome_of(verb: str) -> str:
    return {"approve": "allowed-once", "reject": "rejected"}[verb]


@pytest.mark.parametrize(
    ("answer", "text", "outcome"),
    [("decline", REFUSED, "rejected"), ("cancel", CANCELLED, "cancelled")],
)
async def test_a_dialog_that_does_not_accept_runs_nothing(
    daemon: RunningDaemon,
    folder: Path,
    era: str,
    answer: str,
    text: str,
    outcome: str,
) -> None:
    async with desk(daemon, "--cwd", str(folder), user=User(answer), era=era) as at:
        assert texts(await at.bash("touch f", **WRITE)) == [text]
        assert decisions(daemon, await at.session_id()) == [outcome]
    assert not (folder / "f").exists()


async def test_with_nobody_to_ask_there_is_no_waiting(
    daemon: RunningDaemon, folder: Path
) -> None:
    async with desk(daemon, "--cwd", str(folder), user=User(None)) as at:

        async def nobody() -> bool:
            # A watcher of an earlier test may still be on its way out.
            return texts(await at.bash("touch f", **WRITE)) == [NOBODY]

        await until(nobody)
        assert decisions(daemon, await at.session_id())[-1] == "unavailable"
    assert not (folder / "f").exists()


async def test_never_is_no_at_once_whoever_could_be_asked(
    daemon: RunningDaemon, folder: Path
) -> None:
    async with (
        desk(daemon, "--cwd", str(folder)) as at,
        desk(daemon, "--cwd", str(folder), user=User(None)) as other,
        watching(daemon) as watcher,
    ):
        for one in (at, other):
            switch = ("session", "approval", await one.session_id(), "never")
            assert daemon.cli(*switch).returncode == 0
            assert texts(await one.bash("touch f", **WRITE)) == [REFUSED]
            assert decisions(daemon, await one.session_id()) == ["rejected"]
        assert at.user.questions == []
        # The first that the watcher hears of is the first after the switch back.
        daemon.cli("session", "approval", await other.session_id(), "ask")
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: other.bash("touch g", **WRITE))
            asked = await watcher.hear("asked")
            assert asked["command"] == "touch g"
            await watcher.answer("reject", asked["approval_id"])


async def test_a_session_that_may_not_ask_says_so_in_its_instructions(
    daemon: RunningDaemon, folder: Path
) -> None:
    opened = daemon.cli("session", "open", "--cwd", str(folder), "--approval", "never")
    async with desk(daemon, "--session", opened.stdout.strip()) as at:
        assert "Approval prompts are disabled" in (at.client.instructions or "")
    async with desk(daemon, "--cwd", str(folder)) as at:
        assert "[exit code: N]" in (at.client.instructions or "")
        assert "Approval prompts" not in (at.client.instructions or "")


async def test_a_call_that_is_cancelled_withdraws_its_question(
    daemon: RunningDaemon, folder: Path, era: str
) -> None:
    async with (
        desk(daemon, "--cwd", str(folder), user=User(None), era=era) as at,
        watching(daemon) as watcher,
    ):
        asked: dict[str, Any] = {}
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: at.bash("touch f", **WRITE))
            asked = await watcher.hear("asked")
            group.cancel_scope.cancel()
        settled = await watcher.hear("settled")
        assert settled == {"approval_id": asked["approval_id"], "outcome": "cancelled"}
        late = daemon.cli("approve", asked["approval_id"])
        assert late.returncode == 125
        assert decisions(daemon, await at.session_id()) == ["cancelled"]
    assert not (folder / "f").exists()
