"""Goal: get an unconfined command by taking away what confines, between two calls."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bashd.core.errors import RunnerFailedError, SandboxUnavailableError
from tests.support.callers import client

if TYPE_CHECKING:
    from tests.conftest import DaemonFactory
    from tests.support.accounts import Account


def gone(bwrap: Path) -> None:
    bwrap.unlink()


def failing(bwrap: Path) -> None:
    """As where user namespaces are forbidden, or a library of it is missing."""
    bwrap.unlink()
    bwrap.write_text(
        "#!/bin/sh\necho 'No permissions to create a namespace' >&2; exit 1\n"
    )
    bwrap.chmod(0o755)


def closed(bwrap: Path) -> None:
    bwrap.chmod(0o600)


@pytest.fixture
def own_bwrap(reachable_tmp: Path, identity: Account) -> Path:
    """A bubblewrap that only this test's daemon uses."""
    folder = reachable_tmp / f"own-{secrets.token_hex(4)}"
    folder.mkdir()
    found = shutil.which("bwrap")
    assert found is not None
    copy = folder / "bwrap"
    shutil.copy(found, copy)
    for path in (folder, copy):
        os.chown(path, identity.uid, identity.gid)
    copy.chmod(0o755)
    return copy


@pytest.mark.parametrize("runner", ["bwrap", "auto"])
@pytest.mark.parametrize("broken", [gone, failing, closed])
def test_without_its_runner_nothing_runs_unconfined(
    identity: Account,
    make_daemon: DaemonFactory,
    own_bwrap: Path,
    bwrap_for_users: None,
    broken: Callable[[Path], None],
    runner: str,
):
    del bwrap_for_users
    daemon = make_daemon(
        account=identity,
        runner=runner,
        settings={"sandbox": {"bwrap_path": str(own_bwrap)}},
    )
    workspace = daemon.make_workspace()
    canary = workspace.parent / f"canary-{secrets.token_hex(4)}"
    attack = f"echo out > {canary}; touch reached"
    with client(daemon, cwd=workspace) as warm:
        free = warm.run(attack, mode="danger-full-access")
        assert canary.exists(), f"without walls it must work: {free}"
        canary.unlink()
        (workspace / "reached").unlink()
        assert warm.run("echo fine", mode="workspace-write").stdout.text == "fine\n"

        broken(own_bwrap)
        # A cell that stands goes on standing, and is as confined as before.
        warm.run(attack, mode="workspace-write")
        assert not canary.exists()
        (workspace / "reached").unlink(missing_ok=True)
        with client(daemon, cwd=workspace) as cold:
            for mode in ("read-only", "workspace-write"):
                with pytest.raises((SandboxUnavailableError, RunnerFailedError)):
                    cold.run(attack, mode=mode)
                assert not (workspace / "reached").exists()
                assert not canary.exists()
