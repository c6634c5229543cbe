"""Tasks that write numbered lines, and whether every one of them is there once."""

from __future__ import annotations

import base64
import json
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bashd.protocol.messages import TaskLogsParams
from tests.support.callers import client
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from tests.support.daemons import RunningDaemon

_START = """
import sys
from bashd.client import connect_sync
count, lines, pause, cwd = sys.argv[1:]
with connect_sync(cwd=cwd) as client:
    for number in range(int(count)):
        command = (
            f"for i in $(seq 1 {lines}); do echo {number}:$i; echo e{number}:$i >&2;"
            f" sleep {pause}; done; exit {number % 100}"
        )
        print(client.start(command).task_id, flush=True)
    print(client.session.session_id, flush=True)
"""


@dataclass(frozen=True, slots=True)
class Load:
    """Tasks that were started."""

    daemon: RunningDaemon
    session_id: str
    task_ids: list[str]
    lines: int

    def wait_until_written(self, part: float) -> None:
        """Wait until that part of all lines has been written, as the daemon sees it."""
        whole = sum(
            len(self._expected(n, "").encode()) for n in range(len(self.task_ids))
        )
        eventually(
            lambda: sum(task["stdout_bytes"] for task in self.listed()) >= part * whole,
            "output",
        )

    def listed(self) -> list[dict[str, Any]]:
        """Return the tasks as ``ps`` lists them."""
        words = ("ps", "--all", "--session", self.session_id, "--json")
        done = self.daemon.cli(*words, timeout_s=60)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["tasks"]

    def wait_until_settled(self, within_s: float = 120) -> list[dict[str, Any]]:
        """Wait until none runs; return them."""

        def settled() -> list[dict[str, Any]] | None:
            tasks = self.listed()
            running = [task for task in tasks if task["status"] == "running"]
            return None if running else tasks

        return eventually(settled, "the end of all tasks", within_s)

    def check_survivors(self, tasks: list[dict[str, Any]]) -> None:
        """Check that all tasks ended as they should, all they wrote there once."""
        with client(self.daemon, cwd=None, session=self.session_id) as caller:
            for task in tasks:
                number = self._check_status(task)
                for stream, prefix in (("stdout", ""), ("stderr", "e")):
                    found = caller.read_log(TaskLogsParams(task["task_id"], stream))
                    text = base64.b64decode(found.data_b64).decode()
                    assert text == self._expected(number, prefix), task["task_id"]

    def _check_status(self, task: dict[str, Any]) -> int:
        number = self.task_ids.index(task["task_id"])
        assert task["status"] == "completed", task
        assert task["exit_code"] == number % 100, task
        return number

    def check_survivor(self, task: dict[str, Any]) -> None:
        """Check that a task ended as it should and all it wrote is there once."""
        number = self._check_status(task)
        for option, prefix in ((), ""), (("--stderr",), "e"):
            words = ("logs", task["task_id"], *option)
            found = self.daemon.cli(*words, timeout_s=60).stdout
            assert found == self._expected(number, prefix), task["task_id"]

    def check_beginning(self, task: dict[str, Any]) -> None:
        """Check that what is there of a task that was cut off is how it began."""
        number = self.task_ids.index(task["task_id"])
        found = self.daemon.cli("logs", task["task_id"], timeout_s=60).stdout
        assert self._expected(number, "").startswith(found), task["task_id"]

    def _expected(self, number: int, prefix: str) -> str:
        return "".join(f"{prefix}{number}:{i}\n" for i in range(1, self.lines + 1))


def start_load(
    daemon: RunningDaemon, workspace: Path, *, count: int, lines: int, pause_s: float
) -> Load:
    """Start *count* tasks in a session of their own."""
    words = (str(count), str(lines), str(pause_s), str(workspace))
    done = subprocess.run(
        daemon.argv_as_caller([daemon.install.python, "-P", "-c", _START, *words]),
        env=daemon.caller_env(),
        cwd=workspace,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    *task_ids, session_id = done.stdout.split()
    return Load(daemon, session_id, task_ids, lines)


def names_left(pids: Iterable[int], describe: Callable[[int], str]) -> list[str]:
    """Return what commands are left running among *pids*."""
    words = (describe(pid).partition(" ")[2] for pid in pids)
    return [text for text in words if text.startswith(("bash -c", "sleep "))]
