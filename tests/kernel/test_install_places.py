"""bashd runs wherever it is installed, and no command can rewrite the next launcher.

Under /tmp, which commands see as their own; in a home folder, which they may not write
to; and inside the workspace, which they may.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.accounts import Account
from tests.support.daemons import RunningDaemon, start_daemon
from tests.support.stage import Install, stage
from tests.support.stations import (
    CONFINING,
    FULL_ACCESS,
    READ_ONLY,
    ROOT_BWRAP,
    ROOT_LANDLOCK,
    USER_BWRAP,
    USER_LANDLOCK,
    WORKSPACE_WRITE,
    Combination,
    skip_unless_possible,
)

PLACES = ("under /tmp", "in the home", "in the workspace")


@pytest.fixture(scope="module")
def staged(reachable_tmp: Path) -> Path:
    """A virtual environment with bashd, to be copied; it works wherever it lies."""
    folder = reachable_tmp / "staged"
    folder.mkdir()
    stage(folder)
    return folder / "venv"


@pytest.fixture(
    params=[
        (ROOT_BWRAP, "under /tmp"),
        (ROOT_LANDLOCK, "in the workspace"),
        *((USER_BWRAP, place) for place in PLACES),
        *((USER_LANDLOCK, place) for place in PLACES),
    ],
    ids=lambda param: f"{'-'.join(param[0])} {param[1]}",
)
def installed(
    request: pytest.FixtureRequest,
    staged: Path,
    reachable_tmp: Path,
    ordinary_user: Account,
) -> Iterator[Installed]:
    """A daemon that runs from such a place."""
    combination: Combination = request.param[0]
    skip_unless_possible(request, combination)
    account = ordinary_user
    if combination[0] == "root":
        account = request.getfixturevalue("root_account")
    folder = reachable_tmp / f"installed-{secrets.token_hex(4)}"
    name = f"bashd-{secrets.token_hex(4)}"
    workspace = folder / "workspace"
    prefix = {
        "under /tmp": Path("/tmp", name),
        "in the home": account.home / name,
        "in the workspace": workspace / name,
    }[request.param[1]]
    with contextlib.ExitStack() as stack:
        for made in (folder, workspace):
            made.mkdir()
            os.chown(made, account.uid, account.gid)
        stack.callback(shutil.rmtree, folder)
        shutil.copytree(staged, prefix, symlinks=True)
        stack.callback(shutil.rmtree, prefix, ignore_errors=True)
        subprocess.run(
            ["chown", "-hR", f"{account.uid}:{account.gid}", str(prefix)], check=True
        )
        daemon = start_daemon(
            folder / "daemon",
            Install(str(prefix / "bin" / "python"), staged=True, reason="a test of it"),
            account=account,
            runner=combination[1],
        )
        stack.callback(daemon.stop)
        yield Installed(daemon, prefix, workspace)


@dataclass(frozen=True)
class Installed:
    """A daemon and where its code lies."""

    daemon: RunningDaemon
    prefix: Path
    workspace: Path

    @property
    def can_be_protected(self) -> bool:
        """Landlock cannot subtract from the workspace."""
        return self.daemon.runner == "bwrap" or self.prefix.parent != self.workspace

    @property
    def code(self) -> Path:
        """A module that the next launcher is made from."""
        return next(
            self.prefix.glob("lib/python3*/site-packages/bashd/launcher/keeper.py")
        )


def test_it_runs_and_its_code_cannot_be_rewritten(installed: Installed):
    daemon, workspace = installed.daemon, installed.workspace
    before = installed.code.read_bytes()
    for mode in (*CONFINING, FULL_ACCESS):
        result = daemon.run("echo there", cwd=workspace, mode=mode)
        assert result.get("stdout", result)["text"] == "there\n", mode
    written = daemon.run(
        "echo x > made && cat made", cwd=workspace, mode=WORKSPACE_WRITE
    )
    assert written["stdout"]["text"] == "x\n"
    rewrite = f"echo 'raise SystemExit' >> {installed.code}"
    for mode in CONFINING:
        attack = f"{rewrite}; mv {installed.prefix} {installed.prefix}-away"
        if mode == WORKSPACE_WRITE and not installed.can_be_protected:
            attack = rewrite
        done = daemon.run(attack, cwd=workspace, mode=mode)
        if mode == WORKSPACE_WRITE and not installed.can_be_protected:
            assert done["sandbox"]["enforcement"] == "partial"
        else:
            assert done["exit_code"] != 0
            assert installed.code.read_bytes() == before, mode
    # The next launcher is another one, of code that no command could write to.
    next_cell = daemon.run("echo there", cwd=daemon.caller.home, mode=READ_ONLY)
    assert next_cell["stdout"]["text"] == "there\n"


def test_a_daemon_without_its_compiled_program_says_so_and_does_not_start(
    staged: Path, tmp_path: Path
):
    prefix = tmp_path / "venv"
    shutil.copytree(staged, prefix, symlinks=True)
    (program,) = prefix.glob("lib/python3*/site-packages/bashd/launcher/bashd-keeper")
    program.unlink()
    socket = tmp_path / "bashd.sock"
    done = subprocess.run(
        [str(prefix / "bin" / "python"), "-m", "bashd.daemon", "--socket", str(socket)],
        env={"XDG_STATE_HOME": str(tmp_path), "HOME": str(tmp_path)},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode != 0
    assert str(program) in done.stderr
    assert "apt-get install gcc libc6-dev" in done.stderr
    assert not socket.exists()
