"""A client nobody here wrote: the TypeScript SDK, both of its packages, from npm."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.support.daemons import RunningDaemon

pytestmark = pytest.mark.slow

PACKAGES = ["@modelcontextprotocol/sdk@1.32.2", "@modelcontextprotocol/client@2.4.0"]
DRIVER = Path(__file__).parent / "typescript" / "drive.mjs"


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The driver in a folder of its own, with the packages beside it."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("npm or node is not installed")
    folder = tmp_path_factory.mktemp("typescript")
    (folder / "package.json").write_text('{"private": true, "type": "module"}')
    options = ["--no-audit", "--no-fund", "--no-save", "--loglevel=error"]
    subprocess.run([npm, "install", *options, *PACKAGES], cwd=folder, check=True)
    return Path(shutil.copy(DRIVER, folder))


FLAVOURS = ["v1", "v2-handshake", "v2-modern"]


def drive(
    driver: Path, flavour: str, server: list[str], env: dict[str, str]
) -> dict[str, Any]:
    done = subprocess.run(
        ["node", str(driver), flavour, *server],
        stdout=subprocess.PIPE,
        env={**env, "PATH": os.environ["PATH"]},
        cwd=driver.parent,
        timeout=50,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_the_typescript_sdk_lists_and_calls(
    driver: Path, flavour: str, tmp_path: Path
) -> None:
    server = [sys.executable, "-m", "tests.mcp.local_server", str(tmp_path)]
    # A client may end its server with a signal, which then leaves its folder behind.
    places = {"PYTHONPATH": str(DRIVER.parents[3]), "TMPDIR": str(driver.parent)}
    env = {**os.environ, **places}
    check(drive(driver, flavour, server, env), flavour, tmp_path)


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_the_typescript_sdk_over_a_daemon(
    driver: Path, flavour: str, daemon: RunningDaemon, folder: Path
) -> None:
    options = ("mcp", "--socket", str(daemon.socket), "--cwd", str(folder))
    server = daemon.caller_argv(*options)
    check(drive(driver, flavour, server, daemon.caller_env()), flavour, folder)


def check(seen: dict[str, Any], flavour: str, workspace: Path) -> None:
    def text(step: str) -> str:
        return seen[step]["content"][0]["text"]

    if flavour != "v1":
        modern = seen["protocol"] >= "2026"
        assert modern == (flavour == "v2-modern")
    assert seen["tools"] == ["bash", "bash_output", "bash_kill"]
    assert text("run") == "out\n[stderr]\nerr\n[exit code: 3]"
    assert seen["run"]["structuredContent"]["exit_code"] == 3
    assert "[sandbox: file access denied under read-only mode]" in text("denied")
    assert text("granted") == "(no output)"
    assert len(seen["asked"]) == 1
    assert "    touch f" in seen["asked"][0]
    assert (workspace / "f").exists()
    task_id = seen["started"]["structuredContent"]["task"]["task_id"]
    assert text("started") == f"started background task {task_id}"
    assert text("read").endswith("[status: completed, exit code: 0]")
    assert text("unknown") == 'Error: unknown bash task "bash-999999"'
    assert seen["unknown"]["isError"]
