"""``bashd policy``: what it prints and how it ends."""

from __future__ import annotations

import argparse
import json
import os
import tomllib
from pathlib import Path

import pytest

from bashd.cli import policy_cmd
from bashd.core.policy import parse_policy


def run(*argv: str) -> int:
    parser = argparse.ArgumentParser()
    policy_cmd.add_parser(parser.add_subparsers())
    return policy_cmd.run(parser.parse_args(["policy", *argv]))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    (tmp_path / ".config/bashd/policies").mkdir(parents=True)
    return tmp_path


def write(home: Path, name: str, text: str) -> Path:
    path = home / ".config/bashd/policies" / f"{name}.toml"
    path.write_text(text)
    return path


def test_show_prints_a_policy_file(capsys: pytest.CaptureFixture[str]):
    assert run("show", "ci") == 0
    text = capsys.readouterr().out
    assert parse_policy(text, "shown").values["nested"] is True
    assert '"~/.ssh"' in text


def test_show_as_json(capsys: pytest.CaptureFixture[str]):
    assert run("show", "workspace-write", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["mode"] == "workspace-write"
    assert shown["limits"]["memory_bytes"] is None


def test_an_unknown_policy_is_a_failure(capsys: pytest.CaptureFixture[str]):
    assert run("show", "cii") == 125
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith('bashd: no policy is named "cii"; did you mean "ci"?')


def test_a_failure_as_json(capsys: pytest.CaptureFixture[str]):
    assert run("show", "cii", "--json") == 125
    printed = capsys.readouterr()
    assert json.loads(printed.out)["error"]["code"] == "INVALID_PARAMS"
    assert printed.err == ""


def test_effective_names_the_source_of_each_value(
    home: Path, capsys: pytest.CaptureFixture[str]
):
    path = write(home, "mine", 'network = "none"')
    assert run("effective", "mine") == 0
    out = capsys.readouterr().out
    assert f'network = "none"  # {path}' in out
    assert f'"{home}/.ssh"' in out
    assert tomllib.loads(out)["mode"] == "read-only"


def test_effective_as_json_has_sources(home: Path, capsys: pytest.CaptureFixture[str]):
    path = write(home, "mine", 'network = "none"')
    assert run("effective", "mine", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["sources"]["network"] == [str(path)]
    assert shown["sources"]["devices"] == ["built in"]
    assert len(shown["digest"]) == 64


def test_effective_without_a_name_is_what_a_plain_call_gets(
    home: Path, capsys: pytest.CaptureFixture[str]
):
    config = home / "bashd.toml"
    config.write_text('[sandbox]\npolicy = "ci"\n[ceiling]\nlimits.pids = 9')
    assert run("effective", "--config", str(config), "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["name"] == "ci"
    assert shown["limits"]["pids"] == 9
    assert shown["sources"]["limits.pids"] == [f"{config} [ceiling]"]


def test_check_without_files_checks_all(home: Path, capsys: pytest.CaptureFixture[str]):
    good = write(home, "good", "")
    bad = write(home, "bad", "mod = 1")
    config = home / ".config/bashd/bashd.toml"
    config.write_text("")
    assert run("check") == 1
    printed = capsys.readouterr()
    assert f"{good}: ok" in printed.out
    assert f"{config}: ok" in printed.out
    assert "ci.toml: ok" in printed.out
    assert str(bad) not in printed.out
    assert printed.err == f'{bad}: unknown key "mod"; did you mean "mode"?\n'


def test_check_of_good_files_ends_well(home: Path):
    write(home, "good", 'mode = "workspace-write"')
    assert run("check") == 0


def test_check_as_json(home: Path, capsys: pytest.CaptureFixture[str]):
    bad = write(home, "bad", "mod = 1")
    assert run("check", str(bad), "--json") == 1
    (result,) = json.loads(capsys.readouterr().out)["files"]
    assert result["path"] == str(bad)
    assert result["ok"] is False
    assert '"mode"' in result["error"]


def test_check_takes_the_name_of_a_policy(
    home: Path, capsys: pytest.CaptureFixture[str]
):
    own = write(home, "ci", "limits.pids = 10")
    write(home, "bad", "mod = 1")
    assert run("check", "ci") == 0
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 2, "the shipped one and the user's own"
    assert printed[-1] == f"{own}: ok"
    assert run("check", "bad", "ci") == 1
    assert run("check", "no-such-policy") == 1
    assert capsys.readouterr().err.endswith("no-such-policy: no such file\n")


def test_a_draft_is_checked_where_it_lies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    draft = tmp_path / "draft.toml"
    draft.write_text('mode = "read-only"\nwritable = ["/x"]')
    assert run("check", str(draft)) == 1
    assert capsys.readouterr().err.startswith(f"{draft}: writable has no effect")
    draft.write_text('mode = "workspace-write"\nwritable = ["/x"]')
    assert run("check", str(draft)) == 0


def test_a_missing_file_is_bad(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert run("check", str(tmp_path / "x.toml")) == 1
    assert "no such file" in capsys.readouterr().err


def test_a_configuration_is_checked_as_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    config = tmp_path / "bashd.toml"
    config.write_text("[executor]\ntimeout_ms = 0")
    assert run("check", str(config)) == 1
    assert "executor.timeout_ms must be a positive finite" in capsys.readouterr().err


def test_schema_is_json(capsys: pytest.CaptureFixture[str]):
    assert run("schema") == 0
    assert json.loads(capsys.readouterr().out)["title"] == "bashd policy"


def test_a_broken_configuration_stops_the_verb(
    home: Path, capsys: pytest.CaptureFixture[str]
):
    config = home / "bashd.toml"
    config.write_text("nonsense = 1")
    assert run("show", "ci", "--config", str(config)) == 125
    assert str(config) in capsys.readouterr().err


def test_the_environment_changes_whose_files_count_not_the_walls(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("XDG_CONFIG_HOME", os.fspath(home / "other"))
    write(home, "mine", "")
    assert run("show", "mine") == 125
    assert f"{home}/other/bashd/policies" in capsys.readouterr().err
