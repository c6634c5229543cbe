"""What a result means for a shell and for a reader."""

from __future__ import annotations

from typing import Any

import pytest

from bashd.cli.outcome import exit_status, markers, task_markers
from tests.unit.client.wire_server import run_result, task_info


@pytest.mark.parametrize(
    ("facts", "status"),
    [
        ({"exit_code": 0}, 0),
        ({"exit_code": 7}, 7),
        ({"exit_code": None, "signal": "SIGKILL"}, 137),
        ({"exit_code": None, "signal": "SIGTERM", "timed_out": True}, 124),
        ({"exit_code": 0, "timed_out": True}, 124),
        ({"exit_code": None, "signal": "SIGRTMIN"}, 162),
        ({"exit_code": None, "signal": "SIGRTMIN+1"}, 163),
    ],
)
def test_the_exit_status_is_that_of_the_command(
    facts: dict[str, Any], status: int
) -> None:
    assert exit_status(run_result(**facts)) == status


def test_a_task_that_never_ran_ends_as_a_failure_of_bashd() -> None:
    assert exit_status(task_info("bash-1", status="killed")) == 125


@pytest.mark.parametrize(
    ("facts", "lines"),
    [
        ({}, []),
        ({"exit_code": 3}, ["[exit code: 3]"]),
        ({"exit_code": None, "signal": "SIGTERM"}, ["[killed by signal: SIGTERM]"]),
        (
            {"exit_code": None, "signal": "SIGKILL", "timed_out": True},
            ["[timed out after 120000ms]", "[killed by signal: SIGKILL]"],
        ),
        ({"timed_out": True, "timeout_ms": 100.0}, ["[timed out after 100ms]"]),
        ({"timed_out": True, "timeout_ms": 0.5}, ["[timed out after 0.5ms]"]),
    ],
)
def test_markers_say_what_the_status_cannot(
    facts: dict[str, Any], lines: list[str]
) -> None:
    assert markers(run_result(**facts)) == lines


DENIED = {
    "mode": "read-only",
    "denied": True,
    "verdict": "denied",
    "denials": [{"path": "/etc/x", "operation": "write", "evidence": "kernel"}],
}


def test_a_denial_comes_first_and_names_its_path() -> None:
    assert markers(run_result(exit_code=1, sandbox=DENIED)) == [
        "[sandbox: file access denied under read-only mode]",
        "[sandbox: denied write to /etc/x]",
        "[exit code: 1]",
    ]


def test_an_unconfined_run_has_no_denial() -> None:
    facts = {"mode": "danger-full-access", "denied": False}
    assert markers(run_result(exit_code=1, sandbox=facts)) == ["[exit code: 1]"]
    assert markers(run_result(exit_code=1, sandbox=None)) == ["[exit code: 1]"]


def test_a_settled_task_says_how_it_ended() -> None:
    done = task_info("bash-1", status="completed", exit_code=2, sandbox=DENIED)
    assert task_markers(done)[-1] == "[exit code: 2]"
    assert task_markers(done)[0].startswith("[sandbox: file access denied")
    killed = task_info("bash-1", status="killed", signal="SIGKILL")
    assert task_markers(killed) == ["[status: killed by SIGKILL]"]
    assert task_markers(task_info("bash-1", status="killed")) == ["[status: killed]"]
    fine = task_info("bash-1", status="completed", exit_code=0)
    assert task_markers(fine) == []


def test_a_broken_cell_is_the_sandboxs_problem_and_nothing_else() -> None:
    broken = {"mode": "read-only", "denied": False, "runner_failed": True}
    (line,) = task_markers(task_info("bash-1", status="killed", sandbox=broken))
    assert line.startswith("[sandbox: the sandbox runner itself failed under read-only")


def test_hints_are_shown_with_and_without_a_denial() -> None:
    hints = ["network blocked by sandbox"]
    facts = {"mode": "read-only", "denied": False, "hints": hints}
    shown = "[sandbox: network blocked by sandbox]"
    assert markers(run_result(exit_code=6, sandbox=facts)) == [shown, "[exit code: 6]"]
    assert markers(run_result(exit_code=1, sandbox=DENIED | {"hints": hints}))[-2:] == [
        shown,
        "[exit code: 1]",
    ]
