"""What the administrator's ceilings leave each user: modes, policies and quotas."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.multiuser.test_isolation import home, open_session, run, start_task, tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from tests.multiuser.conftest import Crowd
    from tests.support.accounts import Account
    from tests.support.daemons import RunningDaemon

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def bounded(
    make_crowd: Callable[..., Crowd], ordinary_user: Account, second_user: Account
) -> Crowd:
    """Alice is bounded, bob is not; both are under the ceiling for everybody."""
    return make_crowd(
        settings={
            "limits": {"sessions": 50},
            "ceiling": {"mode": "workspace-write"},
            f"ceiling.user.{ordinary_user.name}": {"mode": "read-only"},
            f"ceiling.user.{ordinary_user.name}.quotas": {
                "sessions": 3,
                "tasks": 2,
                "cells": 2,
                "connections": 8,
                "output_bytes": 200_000,
            },
            f"ceiling.user.{second_user.name}": {"default_policy": "workspace-write"},
        }
    )


def refusal(caller: RunningDaemon, *words: str) -> dict[str, Any]:
    """Run ``bashd WORDS…``, which must be refused, and return the error."""
    done = caller.cli(*words)
    assert done.returncode == 125, done.stdout
    return json.loads(done.stdout)["error"]


def test_nobody_gets_a_wider_mode_than_their_ceiling(bounded: Crowd):
    for caller, mode in (
        (bounded.alice, "workspace-write"),
        (bounded.alice, "danger-full-access"),
        (bounded.bob, "danger-full-access"),
        (bounded.root, "danger-full-access"),
    ):
        words = ("run", "--json", "--mode", mode, "--cwd", str(home(caller)), "--")
        error = refusal(caller, *words, "touch reached")
        assert error["code"] == "NOT_ALLOWED"
        assert "ceiling" in error["message"]
        assert not (home(caller) / "reached").exists()


def test_the_ceiling_of_one_is_not_the_ceiling_of_the_other(bounded: Crowd):
    assert run(bounded.bob, "echo fine >file; cat file") == (0, "fine\n")
    said = bounded.alice.run("echo no >file", cwd=home(bounded.alice))
    assert said["exit_code"] != 0


def test_a_session_cannot_be_opened_or_switched_beyond_the_ceiling(bounded: Crowd):
    wide = ("--mode", "danger-full-access")
    place = ("--cwd", str(home(bounded.alice)))
    opened = refusal(bounded.alice, "session", "open", "--json", *place, *wide)
    assert opened["code"] == "NOT_ALLOWED"
    session = open_session(bounded.alice)
    words = ("session", "mode", "--json", session, "danger-full-access")
    try:
        assert refusal(bounded.alice, *words)["code"] == "NOT_ALLOWED"
    finally:
        bounded.alice.cli("session", "close", session)


def test_a_default_policy_is_for_calls_that_name_none(bounded: Crowd):
    assert bounded.bob.run("true", cwd=home(bounded.bob))["sandbox"]["mode"] == (
        "workspace-write"
    )
    assert bounded.alice.run("true", cwd=home(bounded.alice))["sandbox"]["mode"] == (
        "read-only"
    )


def close_all(caller: RunningDaemon) -> None:
    """Close every session of the caller's."""
    done = caller.cli("session", "list", "--json")
    for session in json.loads(done.stdout)["sessions"]:
        caller.cli("session", "close", session["session_id"])


def test_sessions_are_counted_for_each_user(bounded: Crowd):
    close_all(bounded.alice)
    opened = [open_session(bounded.alice) for _ in range(3)]
    place = ("--cwd", str(home(bounded.alice)))
    error = refusal(bounded.alice, "session", "open", "--json", *place)
    assert error["code"] == "LIMIT"
    assert error["message"].startswith("3 sessions")
    for _ in range(4):
        open_session(bounded.bob)
    bounded.alice.cli("session", "close", opened[0])
    open_session(bounded.alice)
    close_all(bounded.alice)
    close_all(bounded.bob)


def test_running_tasks_are_counted_for_each_user(bounded: Crowd):
    close_all(bounded.alice)
    place = ("--cwd", str(home(bounded.alice)))
    words = ("run", "--json", "--background", *place, "--", "sleep 60")
    started = [bounded.alice.cli(*words) for _ in range(2)]
    assert [done.returncode for done in started] == [0, 0]
    assert refusal(bounded.alice, *words)["code"] == "LIMIT"
    for _ in range(3):
        start_task(bounded.bob, "sleep 60")
    running = {i for i, t in tasks(bounded.alice).items() if t["status"] == "running"}
    bounded.alice.cli("kill", running.pop())
    assert bounded.alice.cli(*words).returncode == 0
    close_all(bounded.alice)
    close_all(bounded.bob)


def test_over_the_cells_the_longest_idle_one_ends_first(bounded: Crowd):
    close_all(bounded.alice)
    sessions = [open_session(bounded.alice) for _ in range(3)]
    for session in sessions:
        done = bounded.alice.cli("run", "--session", session, "--", "echo here")
        assert (done.stdout, done.stderr) == ("here\n", "")
        status = json.loads(bounded.alice.cli("status", "--json").stdout)
        assert status["cells"] <= 2
    # The first one has no cell any more, and gets one again.
    done = bounded.alice.cli("run", "--session", sessions[0], "--", "echo again")
    assert done.stdout == "again\n"
    close_all(bounded.alice)


def test_where_all_cells_are_at_work_a_call_is_refused(bounded: Crowd):
    close_all(bounded.alice)
    sessions = [open_session(bounded.alice) for _ in range(3)]
    background = ("run", "--background", "--session")
    for session in sessions[:2]:
        done = bounded.alice.cli(*background, session, "--", "echo on; sleep 60")
        task = done.stdout.strip()
        assert task, done.stderr
        while "on" not in bounded.alice.cli("logs", task).stdout:
            pass
    words = ("run", "--json", "--session", sessions[2], "--", "true")
    assert refusal(bounded.alice, *words)["code"] == "LIMIT"
    assert run(bounded.bob, "echo served") == (0, "served\n")
    close_all(bounded.alice)


def test_calls_that_compete_for_cells_are_served_or_refused_and_never_cut_off(
    bounded: Crowd,
):
    # Three sessions and two cells: each call may be the end of another's idle cell.
    close_all(bounded.alice)
    sessions = [open_session(bounded.alice) for _ in range(3)]

    def one(number: int) -> str:
        session, word = sessions[number % 3], f"word-{number}"
        done = bounded.alice.cli(
            "run", "--json", "--session", session, "--", f"echo {word}"
        )
        answer = json.loads(done.stdout)
        if "error" in answer:
            return str(answer["error"]["code"])
        assert answer["stdout"]["text"] == f"{word}\n", answer
        assert answer["exit_code"] == 0, answer
        return "served"

    with ThreadPoolExecutor(6) as pool:
        came_to = Counter(pool.map(one, range(30)))
    assert came_to.keys() <= {"served", "LIMIT"}, came_to
    assert came_to["served"] >= 3, came_to
    close_all(bounded.alice)


def test_connections_are_counted_for_each_user(bounded: Crowd):
    with ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(connected(bounded.alice))
        done = bounded.alice.cli("status")
        assert done.returncode == 125
        assert "connections" in done.stderr
        assert bounded.bob.cli("status").returncode == 0
    # Those that were open are closed; the daemon hears of it in its own time.
    while bounded.alice.cli("status").returncode != 0:
        pass


@contextmanager
def connected(daemon: RunningDaemon) -> Generator[None, None, None]:
    """Hold a connection of the caller's open, in a process of theirs."""
    code = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX);"
        f"s.connect({str(daemon.socket)!r}); print('up', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        daemon.argv_as_caller(["/usr/bin/python3", "-c", code]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        yield


def test_output_of_all_sessions_of_a_user_counts_together(bounded: Crowd):
    close_all(bounded.alice)
    sessions = [open_session(bounded.alice) for _ in range(3)]
    for session in sessions:
        command = "head -c 120000 /dev/zero | tr '\\0' x"
        done = bounded.alice.cli(
            "run", "--background", "--session", session, "--", command
        )
        bounded.alice.cli("wait", done.stdout.strip())
    files = bounded.alice.state_dir.glob("sessions/*/out/*")
    kept = sum(size for path in files if (size := path.stat().st_size) > 100_000)
    assert kept == 120_000, "the newest output stays, older ones make room"
    close_all(bounded.alice)
