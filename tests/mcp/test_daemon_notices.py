"""Notices of finished tasks: as they happen and after the next result, once each.

Over a real daemon, which keeps them for the session whatever becomes of the client.
"""

from __future__ import annotations

import os
import signal
from functools import partial
from typing import TYPE_CHECKING

import anyio
import pytest
from mcp.shared.subscriptions import ResourceUpdated

from tests.mcp.conftest import new_folder
from tests.mcp.daemon_desk import desk, restart
from tests.mcp.serving import HANDSHAKE, MODERN, contents, texts
from tests.support.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.mcp.daemon_desk import Desk
    from tests.support.daemons import RunningDaemon

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

WHEN_TOLD = "until [ -e go ]; do sleep 0.05; done"


def notice(task_id: str, status: str = "completed, exit code: 0") -> str:
    return (
        f"background bash task {task_id} finished [status: {status}]. "
        "Read its output with bash_output."
    )


async def kill(at: Desk) -> None:
    for server in at.servers:
        os.kill(server, signal.SIGKILL)


async def settle(daemon: RunningDaemon, folder: Path, task_id: str) -> None:
    await anyio.Path(folder / "go").touch()
    assert daemon.cli("wait", task_id).returncode == 0


async def test_each_way_once_and_after_the_results_own_block(
    daemon: RunningDaemon, folder: Path, era: str
) -> None:
    async with desk(daemon, "--cwd", str(folder), era=era) as at:
        first, second = (
            await at.start(WHEN_TOLD),
            await at.start(f"{WHEN_TOLD}; exit 4"),
        )
        for task_id, status in ((first, 0), (second, 4)):
            await anyio.Path(folder / "go").touch()
            assert daemon.cli("wait", task_id).returncode == status
        if era == HANDSHAKE:
            await until(partial(at.told, 2))
        own, *notices = texts(await at.bash("echo own"))
        assert own == "own\n"
        told = {notice(first), notice(second, "completed, exit code: 4")}
        assert (len(notices), set(notices)) == (2, told)
        assert texts(await at.bash("echo own")) == ["own\n"]
        assert set(at.user.logged) == (told if era == HANDSHAKE else set())
        assert len(at.user.logged) == len(set(at.user.logged))


async def test_a_2026_client_hears_that_the_task_list_changed(
    daemon: RunningDaemon, folder: Path
) -> None:
    async with desk(daemon, "--cwd", str(folder), era=MODERN) as at:
        async with at.client.listen(resource_subscriptions=["bashd://tasks"]) as news:
            task_id = await at.start("exit 3")
            async for event in news:
                assert event == ResourceUpdated("bashd://tasks")
                break
        listed = contents(await at.client.read_resource("bashd://tasks"))
        told = notice(task_id, "completed, exit code: 3")
        assert texts(await at.bash("echo own")) == ["own\n", told]
    (task,) = listed["tasks"]
    assert (task["task_id"], task["exit_code"]) == (task_id, 3)


async def test_a_task_that_ends_while_nobody_is_there(
    daemon: RunningDaemon, folder: Path
) -> None:
    async with desk(daemon, "--cwd", str(folder)) as at:
        session_id = await at.session_id()
        task_id = await at.start(WHEN_TOLD)
        await kill(at)
    await settle(daemon, folder, task_id)
    async with desk(daemon, "--session", session_id) as back:
        await until(back.told)
        assert texts(await back.bash("echo own")) == ["own\n", notice(task_id)]
        assert texts(await back.bash("echo own")) == ["own\n"]
        assert back.user.logged == [notice(task_id)]
    async with desk(daemon, "--session", session_id) as again:
        assert texts(await again.bash("echo own")) == ["own\n"]
        assert again.user.logged == []


async def test_a_client_that_is_killed_before_its_next_result(
    daemon: RunningDaemon, folder: Path
) -> None:
    async with desk(daemon, "--cwd", str(folder)) as at:
        session_id = await at.session_id()
        task_id = await at.start(WHEN_TOLD)
        await settle(daemon, folder, task_id)
        await until(at.told)
        await kill(at)
    async with desk(daemon, "--session", session_id) as back:
        assert texts(await back.bash("echo own")) == ["own\n", notice(task_id)]
        assert texts(await back.bash("echo own")) == ["own\n"]
        # It was told as it happened, to the client that was there.
        assert back.user.logged == []


async def test_two_clients_of_one_session_get_one_block(
    daemon: RunningDaemon, folder: Path
) -> None:
    async with desk(daemon, "--cwd", str(folder)) as at:
        async with desk(daemon, "--session", await at.session_id()) as other:
            task_id = await at.start(WHEN_TOLD)
            await settle(daemon, folder, task_id)
            await until(at.told)
            await until(other.told)
            assert texts(await other.bash("echo own")) == ["own\n", notice(task_id)]
            assert texts(await at.bash("echo own")) == ["own\n"]
        assert at.user.logged == other.user.logged == [notice(task_id)]


async def test_a_notice_of_another_session_stays_there(
    daemon: RunningDaemon, folder: Path
) -> None:
    async with (
        desk(daemon, "--cwd", str(folder)) as at,
        desk(daemon, "--cwd", str(folder)) as other,
    ):
        task_id = await at.start(WHEN_TOLD)
        unowned = daemon.cli(
            *("run", "--background", "--session", await at.session_id(), "true")
        )
        assert unowned.returncode == 0
        await settle(daemon, folder, task_id)
        await until(at.told)
        assert texts(await other.bash("echo own")) == ["own\n"]
        assert texts(await at.bash("echo own")) == ["own\n", notice(task_id)]
        assert at.user.logged == [notice(task_id)]
        assert other.user.logged == []


@pytest.mark.parametrize("ends", ["before", "meanwhile"])
async def test_a_daemon_that_dies_loses_and_doubles_none(
    own_daemon: RunningDaemon, ends: str
) -> None:
    folder = new_folder(own_daemon)
    async with desk(own_daemon, "--cwd", str(folder)) as at:
        task_id = await at.start(f"echo begun; {WHEN_TOLD}")

        async def begun() -> bool:
            return "begun" in await at.output(task_id)

        await until(begun)
        if ends == "before":
            await settle(own_daemon, folder, task_id)
            await until(at.told)
            restart(own_daemon)
        else:
            own_daemon.kill()
            await anyio.Path(folder / "go").touch()
            restart(own_daemon)
            await until(at.told)
        assert texts(await at.bash("echo own")) == ["own\n", notice(task_id)]
        restart(own_daemon)
        assert texts(await at.bash("echo own")) == ["own\n"]
        assert at.user.logged == [notice(task_id)]
