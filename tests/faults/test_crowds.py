"""Hundreds of tasks that begin or end at the same moment, in one cell."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.daemons import RunningDaemon

COUNT = 400
"""More than the 277 messages that a launcher's socket holds."""

_CROWD = """
import json, sys
import anyio
from bashd.client import connect

count, cwd = int(sys.argv[1]), sys.argv[2]

async def main():
    async with connect(cwd=cwd) as client:
        neighbour = await client.start("sleep 600")
        tasks = {}

        async def start(number):
            task = await client.start(f"trap '' TERM; echo {number}; sleep 600; :")
            tasks[number] = task.task_id

        async with anyio.create_task_group() as group:
            for number in range(count):
                group.start_soon(start, number)
        while any(task.stdout_bytes == 0 for task in (await client.list())[1:]):
            await anyio.sleep(0.1)
        said = {}
        for number, task_id in tasks.items():
            said[number] = (await client.read_output(task_id)).delta

        async with anyio.create_task_group() as group:
            for task_id in tasks.values():
                group.start_soon(client.kill, task_id)
        ended = {}
        for task_id in tasks.values():
            ended[task_id] = (await client.wait(task_id)).signal
        spared = (await client.get(neighbour.task_id)).status
        after = (await client.run("echo fine")).stdout.text
        print(json.dumps([said, sorted(set(map(str, ended.values()))), spared, after]))

anyio.run(main)
"""


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "daemon_matrix",
    [("root", "bwrap"), ("user", "landlock")],
    ids="-".join,
    indirect=True,
)
def test_a_crowd_begins_and_is_killed_at_once(daemon_matrix: RunningDaemon):
    daemon = daemon_matrix
    workspace = daemon.make_workspace()
    done = subprocess.run(
        daemon.argv_as_caller(
            [daemon.install.python, "-P", "-c", _CROWD, str(COUNT), str(workspace)]
        ),
        env=daemon.caller_env(),
        cwd=workspace,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said, signals, spared, after = json.loads(done.stdout)
    assert said == {str(number): f"{number}\n" for number in range(COUNT)}
    assert signals == ["SIGKILL"]
    assert spared == "running"
    assert after == "fine\n"
