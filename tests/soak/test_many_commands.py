"""500 commands by 8 clients at once in one workspace: all right, and nothing left.

Every command is different and its answer is known, so a mixed-up pipe, environment or
working folder shows. The clients are processes of the caller's, each with a connection
of its own: three share a session, the others have their own.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from tests.support.stations import (
    ALL,
    FULL_ACCESS,
    READ_ONLY,
    ROOT_BWRAP,
    SERVED_LANDLOCK,
    USER_BWRAP,
    WORKSPACE_WRITE,
    Station,
    on,
)

if TYPE_CHECKING:
    from bashd.client import SyncClient

Leaks = Callable[..., AbstractContextManager[None]]
CLIENTS = 8
SHARING = 3
"""Clients that share one session, and so its cells."""
COMMANDS = 500


@dataclass
class Errands:
    """What one client does, one after the other, and what went wrong."""

    number: int
    client: SyncClient
    count: int
    wrong: list[str] = field(default_factory=list[str])

    def run(self) -> None:
        """Do everything; stop at the first thing that goes wrong."""
        kinds = [
            *(self.echo, self.status, self.write, self.read_stdin, self.see),
            *(self.flood, self.background, self.time_out, self.be_refused),
        ]
        # Each client's own order, the same in every run.
        order = random.Random(self.number)
        for turn in range(self.count):
            kind = order.choices(kinds, weights=[20, 8, 8, 8, 8, 3, 4, 1, 4])[0]
            try:
                kind(f"{self.number}-{turn}")
            except Exception as error:  # noqa: BLE001 - reported by the test
                self.wrong.append(f"{kind.__name__} {turn} of {self.number}: {error!r}")
                return

    def echo(self, word: str) -> None:
        result = self.client.run(f"echo {word}; echo e{word} >&2", mode=READ_ONLY)
        assert result.stdout.text == f"{word}\n", result
        assert result.stderr.text == f"e{word}\n", result

    def status(self, word: str) -> None:
        wanted = len(word) * 7 % 256
        result = self.client.run(f"exit {wanted}", mode=WORKSPACE_WRITE)
        assert (result.exit_code, result.signal) == (wanted, None), result
        killed = self.client.run("kill -KILL $$", mode=READ_ONLY)
        assert killed.signal == "SIGKILL", killed

    def write(self, word: str) -> None:
        result = self.client.run(
            f"echo {word} > {word}; cat {word}; rm {word}", mode=WORKSPACE_WRITE
        )
        assert (result.exit_code, result.stdout.text) == (0, f"{word}\n"), result

    def read_stdin(self, word: str) -> None:
        result = self.client.run("cat", mode=READ_ONLY, stdin=word.encode() * 5_000)
        assert result.stdout.text == word * 5_000, result.stdout.bytes

    def see(self, word: str) -> None:
        result = self.client.run(
            "pwd; echo $WORD; ls -d /tmp", mode=FULL_ACCESS, env={"WORD": word}
        )
        assert result.stdout.text == f"{self.client.session.cwd}\n{word}\n/tmp\n"

    def flood(self, word: str) -> None:
        result = self.client.run(
            f"head -c 300000 /dev/zero | tr '\\0' x; echo {word}", mode=READ_ONLY
        )
        assert result.stdout.bytes == 300_001 + len(word), result.stdout.bytes
        assert result.stdout.text.endswith(f"x{word}\n")

    def background(self, word: str) -> None:
        task = self.client.start(f"echo {word}; exit 3", mode=READ_ONLY)
        assert self.client.wait(task.task_id).exit_code == 3
        read = self.client.read_output(task.task_id)
        assert read is not None
        assert read.delta == f"{word}\n", read

    def time_out(self, _word: str) -> None:
        result = self.client.run("sleep 600 & sleep 600", mode=READ_ONLY, timeout_ms=50)
        assert result.timed_out, result

    def be_refused(self, word: str) -> None:
        result = self.client.run(f"echo x > ../{word}", mode=WORKSPACE_WRITE)
        assert result.exit_code == 1, result
        assert result.sandbox is not None
        assert result.sandbox.denied, result


def do_errands(station: Station, commands: int) -> list[str]:
    """Have all clients at it at once; return what went wrong."""
    shared = station.client.session.session_id
    with contextlib.ExitStack() as stack:
        errands = [
            Errands(
                number,
                stack.enter_context(
                    station.attach(shared) if number < SHARING else station.another()
                ),
                commands // CLIENTS + (number < commands % CLIENTS),
            )
            for number in range(CLIENTS)
        ]
        threads = [threading.Thread(target=one.run) for one in errands]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return [line for one in errands for line in one.wrong]


@pytest.mark.slow
@pytest.mark.timeout(240)
@on(*ALL)
def test_500_commands_by_8_clients_leave_nothing(station: Station, leaks: Leaks):
    # What is kept on purpose is there before: the session's cells and its log.
    for mode in (READ_ONLY, WORKSPACE_WRITE, FULL_ACCESS):
        station.run("true", mode)
    assert do_errands(station, CLIENTS * 2) == []
    with leaks(station.daemon, within_s=60, kinds=KEPT_EXACTLY):
        before = sorted(station.folder.iterdir())
        assert do_errands(station, COMMANDS) == []
        assert list(station.workspace.iterdir()) == []
        assert sorted(station.folder.iterdir()) == before
    status = station.client.status()
    assert status.tasks == 0


KEPT_EXACTLY = ("processes", "mounts", "cgroups", "descriptors")
"""The output that the shared session advertised stays until it is closed; see below."""


@on(ROOT_BWRAP, SERVED_LANDLOCK)
def test_a_session_may_be_closed_while_a_timeouts_grace_runs(
    station: Station, leaks: Leaks
):
    station.run("true")
    with leaks(station.daemon, kinds=KEPT_EXACTLY):
        for _ in range(3):
            with station.another() as session:
                session.run("sleep 600 & sleep 600", mode=READ_ONLY, timeout_ms=20)


@pytest.mark.slow
@on(ROOT_BWRAP, USER_BWRAP, SERVED_LANDLOCK)
def test_a_closed_session_leaves_no_file(station: Station, leaks: Leaks):
    station.run("true")
    with leaks(station.daemon, within_s=30), station.another() as session:
        for mode in (READ_ONLY, WORKSPACE_WRITE, FULL_ACCESS):
            session.run("head -c 300000 /dev/zero; echo x > $TMPDIR/x", mode=mode)
            command = "mkdir -p $TMPDIR/a/b; echo x; sleep 600"
            task = session.start(command, mode=mode)
            assert session.get(task.task_id) is not None


@pytest.mark.soak
@pytest.mark.timeout(1800)
@on(ROOT_BWRAP, SERVED_LANDLOCK)
def test_10_000_commands_leave_nothing(station: Station, leaks: Leaks):
    assert do_errands(station, 200) == []
    with leaks(station.daemon, within_s=120, kinds=KEPT_EXACTLY):
        assert do_errands(station, 10_000) == []
