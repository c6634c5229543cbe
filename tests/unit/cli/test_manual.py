"""The manual pages say what the program goes by, in roff that man accepts."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import fields

import pytest

from bashd.cli.commands import COMMANDS
from bashd.cli.manual import config_page, program_page
from bashd.core.config import KINDS, Config
from bashd.core.policy_schema import KEYS


def shown(page: str) -> str:
    """Return a page as a reader sees it, with man's complaints."""
    if shutil.which("man") is None:
        pytest.skip("needs man (Debian: man-db)")
    done = subprocess.run(
        ["man", "--warnings", "-l", "-"],
        input=page,
        env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "MANWIDTH": "200"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout


def test_every_command_has_its_section():
    text = shown(program_page())
    for command in COMMANDS:
        assert f"   bashd {command}\n" in text


def test_every_option_of_a_command_is_there():
    text = shown(program_page())
    for option in ("--keep-state", "--dry-run", "--mode MODE", "--idle-exit SECONDS"):
        assert option in text


def test_every_key_of_the_configuration_has_its_default():
    text = shown(config_page())
    for section in fields(Config):
        if section.name in ("ceilings", "source"):
            continue
        assert f"\n[{section.name}]\n" in text
    for dotted in KINDS.keys() - {"ceiling"}:
        assert f" {dotted.rpartition('.')[2]}" in text
    assert "\n[ceiling]\n" in text
    assert "timeout_ms (default: 120000)" in text


def test_every_key_of_a_policy_is_explained():
    text = shown(config_page())
    for name, key in KEYS.items():
        assert f" {name}" in text
        assert key.doc.split(";")[0][:30] in text
