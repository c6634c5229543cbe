"""What a git configuration runs: read as git itself reads it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bashd.core.git_config import (
    code_keys,
    effects,
    gitdir_of,
    parse,
    redirects,
    runs_code,
    value_of,
)

PIECES = (
    *("[core]", '[a "b.c"]', "[A.b]", '[x "q\\"r"]', "\n", "\n", "key", "Key2", " = "),
    *("=", "val", '"', "\\n", "\\\\", "\\\n", " ", "\t", "#c", "; d", "!sh", "\r\n"),
    *("true", "é", "[bad", "-", "fsmonitor", "\ufeff", "]", "\\x"),
)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("git") is None:
        pytest.skip("no git")
    return tmp_path_factory.mktemp("git") / "config"


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=14))
def test_whatever_git_accepts_is_read_as_git_reads_it(pieces: list[str], file: Path):
    text = "".join(pieces)
    file.write_bytes(text.encode())
    listed = subprocess.run(
        ["git", "config", "-z", "--list", "-f", str(file)],
        capture_output=True,
        check=False,
    )
    if listed.returncode:
        parse(text)  # git refuses it; this only must not raise
        return
    expected: list[tuple[str, str]] = []
    for item in listed.stdout.decode().split("\0")[:-1]:
        name, has_value, value = item.partition("\n")
        expected.append((name, value if has_value else "true"))
    assert list(parse(text)) == expected


@given(st.text())
def test_no_text_makes_the_parser_raise(text: str):
    parse(text)
    gitdir_of(text)


@pytest.mark.parametrize(
    "text",
    [
        "[core]\nfsmonitor = ./x",
        "[core]\n\thooksPath = .h",
        "[CORE]HooksPath=.h",
        '[filter "x"]\nclean = sh -c id',
        '[credential "https://a.b"]\nhelper = !id',
        "[alias]\nst = !id",
        '[url "ext::sh -c id"]\ninsteadOf = https://',
        '[remote "origin"]\nurl = ext::sh -c id',
        '[includeIf "gitdir:/"]\npath = ../evil',
        "[include]\npath = ../evil",
        '[submodule "s"]\nupdate = !id',
        "[pager]\nlog = id",
        '[hook "x"]\ncommand = id',
        '[lfs "customtransfer.x"]\npath = id',
    ],
)
def test_keys_that_run_code_are_named(text: str):
    assert len(code_keys(text)) == 1
    assert effects(text)


@pytest.mark.parametrize(
    "text",
    [
        "[core]\nfsmonitor = true",
        "[core]\nrepositoryformatversion = 0\nbare = false",
        "[user]\nname = a\nemail = a@b",
        "[alias]\nst = status",
        '[branch "main"]\nremote = origin\nmerge = refs/heads/main',
        "[pager]\nlog = false",
        '[submodule "s"]\nactive = true\nupdate = rebase',
    ],
)
def test_keys_that_only_describe_are_not(text: str):
    assert effects(text) == frozenset()


def test_addresses_and_proxies_redirect_without_running_anything():
    text = '[remote "o"]\nurl = https://a/b\n[http]\nproxy = http://p\n'
    assert not code_keys(text)
    assert {name for name, _ in effects(text)} == {"remote.o.url", "http.proxy"}
    assert all(redirects(pair) and not runs_code(pair) for pair in effects(text))


def test_the_last_value_counts():
    text = "[core]\nhooksPath = a\n[core]\nhookspath = b # not this"
    assert value_of(text, "core.hookspath") == "b"
    assert value_of(text, "core.editor") is None


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("gitdir: ../meta/x.git\n", "../meta/x.git"),
        ("gitdir: /a b/c", "/a b/c"),
        ("ref: refs/heads/main\n", None),
        ("gitdir:\n", None),
        ("", None),
    ],
)
def test_a_git_file_names_its_folder(text: str, target: str | None):
    assert gitdir_of(text) == target
