"""Goal: have the daemon stumble over a name that it may not look behind.

A link of /proc's to another user's folder or namespace exists and cannot be followed, and
a path may hold what no path can. A command can put either wherever the daemon looks for
names: into a link, into git's files, into what it says on stderr.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest

from tests.adversarial.attack import listening
from tests.support.accounts import Account
from tests.support.stations import (
    ROOT_BWRAP,
    SERVED_BWRAP,
    USER_LANDLOCK,
    Station,
    on,
)

SOME = on(ROOT_BWRAP, USER_LANDLOCK)
CLOSED = ("/proc/1/ns/user", "/proc/1/cwd/x", "/proc/1/root", "/proc/self/fd/99/x")
LONG = "/" + "x" * 300
PLANTED = (
    *(f"ln -s {path} .codex" for path in CLOSED),
    *(f"ln -s {path} .git" for path in CLOSED),
    "ln -s .codex .codex",
    f"ln -s {LONG} .codex",
    *(f"echo 'gitdir: {path}' > .git" for path in (*CLOSED, LONG)),
    "printf 'gitdir: /a\\0b' > .git",
    *(
        f"git init -q . && printf '[core]\\n\\thooksPath = {path}\\n' >> .git/config"
        for path in CLOSED
    ),
    "git init -q . && printf '[core]\\n\\thooksPath = \"/a\\0b\"\\n' >> .git/config",
    f"git init -q . && echo {CLOSED[0]} > .git/commondir",
    "git init -q . && printf '/a\\0b' > .git/commondir",
    f"mkdir .git && ln -s {CLOSED[0]} .git/hooks && ln -s {CLOSED[1]} .git/config"
    " && echo 'ref: refs/heads/main' > .git/HEAD",
)


@SOME
@pytest.mark.parametrize("planted", PLANTED)
def test_the_next_command_runs_whatever_was_planted(station: Station, planted: str):
    first = station.run(f"{planted}; echo planted")
    assert first.stdout.text == "planted\n"
    assert station.text("echo fine") == "fine\n"


@SOME
def test_a_command_may_complain_about_any_name(station: Station):
    for named in (
        *CLOSED,
        LONG,
        "/a\\0b",
        "/tmp/docker.sock\\0",
        "/a\\nb",
        "\\xff\\xfe/x",
    ):
        complaint = (
            f"printf 'x: cannot open {named}: Permission denied\\n' >&2;"
            f" printf 'connect to unix://{named}: permission denied\\n' >&2; exit 3"
        )
        assert station.run(complaint).exit_code == 3, named
        task = station.client.start(complaint, mode="workspace-write")
        assert station.client.wait(task.task_id).exit_code == 3, named


@on(SERVED_BWRAP)
def test_another_users_socket_may_have_any_name(
    station: Station, root_account: Account
):
    """Its name is in a table that the daemon reads for every cell."""
    del root_account
    folder = f"/proc/{os.getpid()}/cwd"
    before = Path.cwd()
    os.chdir(station.folder)
    try:
        # To the served user this process, root's, and its folder are closed.
        with listening(f"{folder}/{secrets.token_hex(4)}"):
            other = station.open()
            assert other.run("echo fine").stdout.text == "fine\n"
    finally:
        os.chdir(before)
