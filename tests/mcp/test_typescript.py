"""A client nobody here wrote: the TypeScript SDK, both of its packages, from npm."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

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


def drive(driver: Path, flavour: str, workspace: Path) -> dict[str, Any]:
    server = [sys.executable, "-m", "tests.mcp.local_server", str(workspace)]
    root = str(DRIVER.parents[3])
    done = subprocess.run(
        ["node", str(driver), flavour, *server],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": root},
        cwd=driver.parent,
        timeout=50,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("flavour", ["v1", "v2-handshake", "v2-modern"])
def test_the_typescript_sdk_lists_and_calls(
    driver: Path, flavour: str, tmp_path: Path
) -> None:
    seen = drive(driver, flavour, tmp_path)

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
    assert (tmp_path / "f").exists()
    assert text("started") == "started background task bash-1"
    assert text("read").endswith("[status: completed, exit code: 0]")
    assert text("unknown") == 'Error: unknown bash task "bash-99"'
    assert seen["unknown"]["isError"]
