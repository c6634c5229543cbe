"""A job's home is its own: empty, writable, gone with the job; named caches apart."""

from __future__ import annotations

import secrets
import shlex
from typing import TYPE_CHECKING

import pytest

from tests.conftest import RUNNERS, daemon_factory
from tests.support.stage import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.accounts import Account
    from tests.support.daemons import RunningDaemon
    from tests.support.stage import Install

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=RUNNERS)
def daemon(
    request: pytest.FixtureRequest,
    reachable_tmp: Path,
    install: Install,
    ordinary_user: Account,
    bwrap_for_users: None,
) -> Iterator[RunningDaemon]:
    with daemon_factory(reachable_tmp, install) as make:
        yield make(account=ordinary_user, runner=request.param)


@pytest.fixture
def caches(daemon: RunningDaemon) -> Iterator[tuple[Path, Path]]:
    """A policy `ci` of the user's own with two shared caches."""
    home = daemon.caller.home
    read, write = (daemon.make_workspace(f"{n}{secrets.token_hex(3)}") for n in "rw")
    (read / "kept").write_text("from the host\n")
    folder = home / ".config" / "bashd" / "policies"
    shipped = (REPOSITORY / "policies" / "ci.toml").read_text()
    added = f'visible = ["~/{read.name}"]\nwritable = ["~/{write.name}"]\nhome ='
    policy = shlex.quote(shipped.replace("\nhome =", f"\n{added}", 1))
    daemon_run(daemon, f"mkdir -p {folder} && printf %s {policy} > {folder}/ci.toml")
    yield read, write
    daemon_run(daemon, f"rm -r {home}/.config/bashd")


def daemon_run(daemon: RunningDaemon, line: str) -> None:
    options = ("--mode", "danger-full-access", "--cwd", str(daemon.caller.home))
    done = daemon.cli("run", *options, "--", line)
    assert done.returncode == 0, done.stderr


def in_job(daemon: RunningDaemon, workspace: Path, line: str) -> str:
    done = daemon.cli("run", "--policy", "ci", "--cwd", str(workspace), "--", line)
    return done.stdout


def test_the_real_home_is_out_of_reach(daemon: RunningDaemon) -> None:
    workspace = daemon.make_workspace(f"job-{secrets.token_hex(3)}")
    canary = daemon.caller.home / "canary"
    canary.write_text("secret\n")
    canary.chmod(0o644)
    try:
        assert "secret" in daemon.cli("run", "--", f"cat {canary}").stdout
        line = f"cat {canary} ~/canary 2>/dev/null; echo x > {canary} || echo refused"
        assert "secret" not in in_job(daemon, workspace, line)
        assert canary.read_text() == "secret\n"
    finally:
        canary.unlink()


def test_a_job_has_a_home_and_its_workspace_in_it(daemon: RunningDaemon) -> None:
    workspace = daemon.make_workspace(f"job-{secrets.token_hex(3)}")
    line = "cd && echo mine > .cfg && cat ~/.cfg && cd - > /dev/null && echo x > made"
    assert in_job(daemon, workspace, line) == "mine\n"
    assert (workspace / "made").read_text() == "x\n"
    assert not (daemon.caller.home / ".cfg").exists()
    # The next step of the same job finds it, another job does not.
    assert in_job(daemon, workspace, "cat ~/.cfg") == "mine\n"
    other = daemon.make_workspace(f"job-{secrets.token_hex(3)}")
    assert in_job(daemon, other, "cat ~/.cfg 2>/dev/null") == ""
    assert in_job(daemon, other, f"cat {workspace}/made 2>/dev/null") == ""


def test_named_caches_are_shared_as_the_policy_says(
    daemon: RunningDaemon, caches: tuple[Path, Path]
) -> None:
    read, write = caches
    workspace = daemon.make_workspace(f"job-{secrets.token_hex(3)}")
    assert in_job(daemon, workspace, f"cat {read}/kept") == "from the host\n"
    line = f"echo x > {read}/new 2>/dev/null || echo refused; echo y > {write}/new"
    assert in_job(daemon, workspace, line) == "refused\n"
    assert (write / "new").read_text() == "y\n"
    assert not (read / "new").exists()


def test_a_workspace_that_is_the_home_is_the_home(daemon: RunningDaemon) -> None:
    home = daemon.caller.home
    assert in_job(daemon, home, "echo x > made-at-home; ls made-at-home") != ""
    (home / "made-at-home").unlink()
