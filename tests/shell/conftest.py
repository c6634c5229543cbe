"""A bashd-sh to give to other programs, and a bash for comparison."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import daemon_factory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.accounts import Account
    from tests.support.daemons import RunningDaemon
    from tests.support.stage import Install


@dataclass(frozen=True, slots=True)
class Ran:
    """What a program did."""

    status: int
    stdout: str
    stderr: str


@dataclass(slots=True)
class Bench:
    """Runs programs as the caller, with either shell."""

    daemon: RunningDaemon
    folder: Path
    workspace: Path

    @property
    def shells(self) -> tuple[str, str]:
        """bash first: what it does is what is expected."""
        return ("bash", str(self.folder / "bashd-sh"))

    @property
    def outside(self) -> Path:
        """A file that the caller could make, and a job must not."""
        return self.folder / "outside" / "file"

    def env(self, **more: str) -> dict[str, str]:
        path = f"{self.folder}:{self.daemon.caller.environment()['PATH']}"
        return self.daemon.caller_env({"PATH": path} | more)

    def popen(self, argv: list[str], **options: Any) -> subprocess.Popen[str]:
        given: dict[str, Any] = {
            "env": self.env(),
            "cwd": self.workspace,
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "text": True,
        } | options
        argv = self.daemon.argv_as_caller(argv)
        # The program keeps the name it is called by; it is bash's $0.
        return subprocess.Popen(argv, executable=shutil.which(argv[0]), **given)

    def run(self, argv: list[str], *, stdin: str | None = None, **options: Any) -> Ran:
        if stdin is not None:
            options["stdin"] = subprocess.PIPE
        with self.popen(argv, **options) as process:
            out, err = process.communicate(stdin, timeout=50)
        return Ran(process.returncode, out or "", err or "")

    def both(self, *words: str, stdin: str | None = None, **options: Any) -> Ran:
        """Run either shell with *words*; they must agree; returns what they did."""
        bash, ours = (
            self.run([shell, *words], stdin=stdin, **options) for shell in self.shells
        )
        assert ours == bash
        return ours

    def write(self, name: str, text: str) -> Path:
        path = self.workspace / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        caller = self.daemon.caller
        subprocess.run(
            ["chown", "-R", f"{caller.uid}:{caller.gid}", self.workspace],
            check=True,
        )
        return path


@pytest.fixture(scope="module")
def shell_daemon(
    reachable_tmp: Path,
    install: Install,
    ordinary_user: Account,
    bwrap_for_users: None,
) -> Iterator[RunningDaemon]:
    with daemon_factory(reachable_tmp, install) as make:
        yield make(account=ordinary_user)


@pytest.fixture
def bench(shell_daemon: RunningDaemon, reachable_tmp: Path) -> Bench:
    folder = reachable_tmp / f"sh-{secrets.token_hex(4)}"
    folder.mkdir()
    program = folder / "bashd-sh"
    start = "from bashd.cli.shell import main; raise SystemExit(main())"
    python = shell_daemon.install.python
    program.write_text(f"#!/bin/sh\nexec {python} -P -c '{start}' \"$@\"\n")
    program.chmod(0o755)
    bench = Bench(shell_daemon, folder, folder)
    bench.outside.parent.mkdir()
    os.chown(bench.outside.parent, shell_daemon.caller.uid, shell_daemon.caller.gid)
    bench.workspace = shell_daemon.make_workspace(f"job-{secrets.token_hex(4)}")
    return bench
