"""`bashd mcp-config`, and `bashd mcp` where its SDK is missing."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tomllib

import pytest


def bashd(*words: str, before: str = "") -> subprocess.CompletedProcess[str]:
    code = f"import sys; {before}\nfrom bashd.cli.main import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def config(*words: str) -> str:
    done = bashd("mcp-config", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("client", "key"),
    [("gemini", "mcpServers"), ("zed", "context_servers"), ("json", "mcpServers")],
)
def test_json_clients(client: str, key: str) -> None:
    server = json.loads(config(client, "--mode", "workspace-write"))[key]["bashd"]
    assert server["args"][-3:] == ["mcp", "--mode", "workspace-write"]


def test_codex_waits_longer_than_the_longest_command() -> None:
    table = tomllib.loads(config("codex", "--cwd", '/a "b"'))["mcp_servers"]["bashd"]
    assert table["args"][-3:] == ["mcp", "--cwd", '/a "b"']
    assert table["tool_timeout_sec"] > 600


def test_claude_gets_a_command_for_the_shell() -> None:
    words = shlex.split(config("claude", "--cwd", "/a b", "--foreground-limit", "50"))
    assert words[:5] == ["claude", "mcp", "add", "bashd", "--"]
    assert words[-5:] == ["mcp", "--cwd", "/a b", "--foreground-limit", "50"]


@pytest.mark.parametrize("words", [["nano"], ["json", "--foreground-limit", "-1"], []])
def test_words_that_make_no_sense(words: list[str]) -> None:
    assert bashd("mcp-config", *words).returncode == 2


WITHOUT_SDK = """
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("mcp", "mcp_types"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocker())
"""


def test_without_the_sdk_it_says_how_to_get_it() -> None:
    done = bashd("mcp", before=WITHOUT_SDK)
    assert done.returncode == 125
    assert done.stderr == (
        "bashd: bashd mcp needs the MCP SDK; install it with: pip install 'bashd[mcp]'\n"
    )


def test_only_serving_loads_the_sdk() -> None:
    after = "import bashd.cli.mcp_cmd; assert 'mcp' not in sys.modules"
    assert bashd("mcp-config", "json", before=after).returncode == 0
