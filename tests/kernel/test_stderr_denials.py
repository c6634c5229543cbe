"""Denials by stderr, where the kernel's records are not read: real programs, real walls."""

from __future__ import annotations

from base64 import b64decode
from typing import Any

import pytest

from bashd.core.model import Mode, RunResult, Verdict
from bashd.protocol.messages import TaskLogsParams
from tests.support.stations import (
    FULL_ACCESS,
    READ_ONLY,
    SERVED_BWRAP,
    SERVED_LANDLOCK,
    USER_BWRAP,
    USER_LANDLOCK,
    WORKSPACE_WRITE,
    Station,
    on,
)

# A machine may come with audit on.
pytestmark = pytest.mark.usefixtures("audit_off")

WALL = {"bwrap": "Read-only file system", "landlock": "Permission denied"}


def facts(result: RunResult) -> Any:
    assert result.sandbox is not None
    return result.sandbox


# -- what is no denial --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "exit_code"),
    [
        ("false", 1),
        ("grep nope /etc/hostname", 1),
        ("nosuchcmd", 127),
        ("bash -c 'exit 126'", 126),
        ("echo 'app: Permission denied (publickey)' >&2; exit 255", 255),
        ("echo 'mount: Operation not permitted' >&2; exit 1", 1),
        ("echo 'landlock-run: fatal' >&2; exit 125", 125),
        ("echo 'bwrap: Creating new namespace failed' >&2; exit 1", 1),
        ("printf 'exit 0\\n' > $TMPDIR/plain; $TMPDIR/plain", 126),
    ],
)
def test_an_ordinary_failure_is_no_denial(
    station: Station, command: str, exit_code: int
):
    result = station.run(command)
    assert result.exit_code == exit_code, result
    assert (facts(result).denied, facts(result).verdict) == (False, Verdict.NONE)
    assert facts(result).runner_failed is False


@on(USER_BWRAP, USER_LANDLOCK, SERVED_BWRAP, SERVED_LANDLOCK)
def test_a_file_mode_is_no_denial(station: Station):
    # Before any wall, the file's own mode refuses an ordinary user.
    result = station.run("cat /root/secret")
    assert "Permission denied" in result.stderr.text
    assert facts(result).denied is False


def test_the_words_count_on_stderr_and_for_a_failure_only(station: Station):
    words = WALL[station.runner]
    for command, denied in (
        (f"echo '{words}' >&2; exit 1", True),
        (f"echo '{words.upper()}' >&2; exit 1", True),
        (f"echo '{words}'; exit 1", False),
        (f"echo '{words}' >&2; exit 0", False),
        (f"echo '{words}' >&2; kill -KILL $$", False),
    ):
        result = station.run(command)
        assert facts(result).denied is denied, command


def test_full_access_is_never_denied(station: Station):
    both = " ".join(WALL.values())
    result = station.run(f"echo '{both}' >&2; exit 1", FULL_ACCESS)
    assert (facts(result).mode, facts(result).denied) == (
        Mode.DANGER_FULL_ACCESS,
        False,
    )


# -- what is one --------------------------------------------------------------------------


def test_each_denial_names_object_and_operation(station: Station):
    station.make("outside/old")
    station.make("workspace/f")
    out = station.outside
    for command, path, operation in (
        (f"touch {out}/t", f"{out}/t", "create"),
        (f"mkdir {out}/d", f"{out}/d", "create"),
        (f"rm {out}/old", f"{out}/old", "remove"),
        (f"mv f {out}/f", f"{out}/f", "rename"),
        (f"ln -s x {out}/l", f"{out}/l", "create"),
        (f'python3 -c \'open("{out}/p", "w")\'', f"{out}/p", None),
        (f": > {out}/old", f"{out}/old", None),
        (f": > '{out}/a b'", f"{out}/a b", None),
        (f"git init -q {out}/repo", None, None),
        (f"tar cf {out}/x.tar f", f"{out}/x.tar", None),
        (f"cp f {out}/c", f"{out}/c", "create"),
    ):
        result = station.run(command)
        assert result.exit_code != 0, command
        assert facts(result).denied is True, (command, result)
        found = facts(result).denials[0]
        if path is not None:
            assert found.path == path, (command, facts(result).denials)
        if operation is not None:
            assert found.operation == operation, (command, facts(result).denials)


def test_the_marker_of_a_task_is_there_on_every_read(station: Station):
    task = station.client.start(f"touch {station.outside}/x", mode=READ_ONLY)
    station.client.wait(task.task_id)
    for _ in range(2):
        read = station.client.read_output(task.task_id)
        assert read is not None
        assert read.task.sandbox is not None
        assert read.task.sandbox.denied is True


def test_a_killed_task_whose_stderr_has_the_words_is_not_denied(station: Station):
    words = WALL[station.runner]
    command = f"echo '{words}' >&2; exec sleep 60"
    task = station.client.start(command, mode=WORKSPACE_WRITE)
    assert words in _stderr(station, task.task_id)
    station.client.kill(task.task_id)
    done = station.client.wait(task.task_id)
    assert done.signal == "SIGTERM"
    assert done.sandbox is not None
    assert done.sandbox.denied is False


def _stderr(station: Station, task_id: str) -> str:
    wanted = TaskLogsParams(task_id, stream="stderr", wait=True)
    return b64decode(station.client.read_log(wanted).data_b64).decode()
