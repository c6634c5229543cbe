"""systemd understands the units, and the folders and group they need come about."""

from __future__ import annotations

import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from tests.support.units import UNITS, render, verify

pytestmark = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="no systemd-analyze here"
)


@pytest.mark.parametrize("scope", ["system", "user"])
def test_systemd_has_nothing_against_the_units(tmp_path: Path, scope: str):
    units = [unit for unit in render(tmp_path) if unit.parent.name == scope]
    assert {unit.name for unit in units} == {"bashd.service", "bashd.socket"}
    assert verify(scope, units) == ""


def test_a_mistake_in_a_unit_would_be_seen(tmp_path: Path):
    unit = next(unit for unit in render(tmp_path) if unit.name == "bashd.service")
    unit.write_text(unit.read_text().replace("KillMode=process", "KillMood=process"))
    assert "KillMood" in verify(unit.parent.name, [unit])


def test_the_program_is_named_by_a_placeholder_everywhere():
    for unit in UNITS.rglob("*.service"):
        starts = [
            line for line in unit.read_text().splitlines() if "ExecStart=" in line
        ]
        assert starts == ["ExecStart=@bashd@ serve"]


def test_every_line_of_the_system_units_has_a_reason():
    self_evident = (
        *("[", "Description=", "Documentation=", "ExecStart=", "After=", "WantedBy="),
        *("Also=", "ListenStream=", "StartLimitBurst=", "Restart=", "SocketMode="),
        *("StateDirectoryMode=", "ConfigurationDirectory=", "SocketGroup="),
    )
    for unit in (UNITS / "bashd.service", UNITS / "bashd.socket"):
        before = ""
        for line in unit.read_text().splitlines():
            if line and not line.startswith(("#", *self_evident)):
                assert before.startswith("#"), f"{unit.name}: {line}"
            before = line


def test_group_and_folder_come_about_on_an_empty_machine(tmp_path: Path, root_account):
    for name in ("etc", "run"):
        (tmp_path / name).mkdir()
    root = f"--root={tmp_path}"
    tools = (
        ["systemd-sysusers", root, str(UNITS / "sysusers.d" / "bashd.conf")],
        [
            "systemd-tmpfiles",
            root,
            "--create",
            str(UNITS / "tmpfiles.d" / "bashd.conf"),
        ],
    )
    (tmp_path / "etc" / "passwd").write_text("root:x:0:0::/:/bin/sh\n")
    (tmp_path / "etc" / "group").write_text("root:x:0:\n")
    for argv in tools:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    groups = dict(
        line.split(":x:") for line in (tmp_path / "etc/group").read_text().split()
    )
    folder = (tmp_path / "run" / "bashd").stat()
    assert stat.S_IMODE(folder.st_mode) == 0o751
    assert (folder.st_uid, f"{folder.st_gid}:") == (0, groups["bashd"])
