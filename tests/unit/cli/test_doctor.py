"""The doctor tells what is there, tries it for real, and never claims to know more."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from bashd.cli import doctor_cmd, doctor_walls
from bashd.cli.doctor_findings import Finding, State, judge, landlock_words
from bashd.cli.doctor_host import judge_audit, judge_hard_links
from bashd.core.errors import ConfigError
from bashd.launcher.kernel import landlock_abi
from tests.support.accounts import Account, argv_as
from tests.support.stage import Install

OK, LIMITED, MISSING, UNKNOWN = (
    State.OK,
    State.LIMITED,
    State.MISSING,
    State.UNKNOWN,
)
DOCTOR = """
import argparse, sys
from bashd.cli import doctor_cmd
parser = argparse.ArgumentParser("bashd")
doctor_cmd.add_parser(parser.add_subparsers())
sys.exit(doctor_cmd.run(parser.parse_args(["doctor", *sys.argv[1:]])))
"""
WITHOUT = """
import errno, os, sys, pyseccomp as s
rules = s.SyscallFilter(s.ALLOW)
for name in sys.argv[2].split(","):
    if name == "userns":
        new_user = s.Arg(0, s.MASKED_EQ, 0x10000000, 0x10000000)
        rules.add_rule(s.ERRNO(errno.EPERM), "unshare", new_user)
        rules.add_rule(s.ERRNO(errno.EPERM), "clone", new_user)
        rules.add_rule(s.ERRNO(errno.ENOSYS), "clone3")
    else:
        rules.add_rule(s.ERRNO(errno.ENOSYS), name)
rules.load()
os.execv(sys.executable, [sys.executable, "-c", sys.argv[1], "--json"])
"""
"""Becomes the doctor on a kernel that lacks something."""


def findings(bwrap: State, landlock: State, seccomp: State) -> list[Finding]:
    return [
        Finding("bubblewrap", bwrap, "bubblewrap's detail", "install bubblewrap"),
        Finding("landlock", landlock, "Landlock's detail"),
        Finding("seccomp", seccomp, "seccomp's detail"),
    ]


@pytest.mark.parametrize(
    ("bwrap", "landlock", "seccomp", "root", "runner", "enforcement"),
    [
        (OK, OK, OK, False, "bwrap", "full"),
        (OK, OK, OK, True, "bwrap", "full"),
        (OK, LIMITED, OK, False, "bwrap", "partial"),
        (OK, MISSING, OK, False, "bwrap", "partial"),
        (OK, MISSING, OK, True, "bwrap", "partial"),
        (OK, UNKNOWN, OK, True, "bwrap", "partial"),
        (MISSING, OK, OK, False, "landlock", "partial"),
        (MISSING, LIMITED, OK, False, "landlock", "partial"),
        (UNKNOWN, OK, OK, False, "landlock", "partial"),
        (MISSING, OK, MISSING, False, None, "none"),
        (MISSING, UNKNOWN, OK, False, None, "none"),
        (MISSING, MISSING, OK, True, None, "none"),
        (OK, OK, MISSING, True, None, "none"),
    ],
)
def test_the_rung_follows_from_the_walls(
    bwrap: State,
    landlock: State,
    seccomp: State,
    root: bool,
    runner: str | None,
    enforcement: str,
):
    verdict = judge(findings(bwrap, landlock, seccomp), root=root)
    assert (verdict.runner, verdict.enforcement) == (runner, enforcement)
    assert verdict.exit_status == {"full": 0, "partial": 1, "none": 2}[enforcement]
    assert verdict.reason


def test_a_configured_runner_is_not_replaced_by_another():
    broken = findings(MISSING, OK, OK)
    assert judge(broken, root=False, wanted="bwrap").runner is None
    fine = findings(OK, OK, OK)
    assert judge(fine, root=False, wanted="landlock").runner == "landlock"


def test_advice_for_a_better_rung_is_passed_on():
    verdict = judge(findings(MISSING, OK, OK), root=False)
    assert verdict.better == ("install bubblewrap",)
    assert verdict.gaps


def test_an_abi_is_told_with_what_it_lacks():
    assert landlock_words(2) == (
        "ABI 2: files and folders, moves between folders; not yet: truncation (3), "
        "TCP ports (4), device ioctls (5), signals and abstract sockets (6), "
        "records of refusals (7)"
    )
    assert "not yet" not in landlock_words(7)


def examine(argv: list[str], account: Account) -> tuple[int, dict[str, object]]:
    done = subprocess.run(
        argv_as(account, argv),
        env=account.environment(),
        cwd="/",
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.stdout.startswith("{"), done.stderr
    return done.returncode, json.loads(done.stdout)


def states(report: dict[str, object]) -> dict[str, str]:
    found = report["findings"]
    assert isinstance(found, list)
    return {finding["name"]: finding["state"] for finding in found}


def test_the_report_agrees_with_this_kernel(install: Install, identity: Account):
    status, report = examine([install.python, "-c", DOCTOR, "--json"], identity)
    assert report["uid"] == identity.uid
    assert set(states(report)) == {
        *("landlock", "seccomp", "user namespaces", "apparmor", "bubblewrap"),
        *("cgroup", "audit", "hard links"),
    }
    assert (states(report)["landlock"] == "missing") == (landlock_abi() == 0)
    assert status == {"full": 0, "partial": 1, "none": 2}[str(report["enforcement"])]


def test_without_landlock_the_second_wall_is_missed(
    install: Install, ordinary_user: Account, bwrap_for_users: None
):
    without = "landlock_create_ruleset"
    status, report = examine(
        [install.python, "-c", WITHOUT, DOCTOR, without], ordinary_user
    )
    assert states(report)["landlock"] == "missing"
    assert (status, report["runner"], report["enforcement"]) == (1, "bwrap", "partial")


def test_without_user_namespaces_a_user_falls_to_landlock(
    install: Install, ordinary_user: Account
):
    status, report = examine(
        [install.python, "-c", WITHOUT, DOCTOR, "userns"], ordinary_user
    )
    assert states(report)["user namespaces"] == "missing"
    assert states(report)["bubblewrap"] == "missing"
    assert (status, report["runner"]) == (1, "landlock")
    assert report["better"]


def test_without_any_wall_there_is_no_runner(install: Install, ordinary_user: Account):
    without = "landlock_create_ruleset,userns"
    status, report = examine(
        [install.python, "-c", WITHOUT, DOCTOR, without], ordinary_user
    )
    assert (status, report["runner"], report["enforcement"]) == (2, None, "none")


def bwrap_finding(folder: Path, script: str) -> Finding:
    program = folder / "bwrap"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    found = doctor_walls.look_at_walls(str(folder), str(program))
    return {finding.name: finding for finding in found}["bubblewrap"]


def test_the_configured_runner_and_bubblewrap_are_judged(
    install: Install, ordinary_user: Account, tmp_path: Path
):
    config = ordinary_user.home / "doctor.toml"
    config.write_text('[sandbox]\nbwrap_path = "/no/such/bwrap"\nrunner = "bwrap"\n')
    config.chmod(0o644)
    status, report = examine(
        [install.python, "-c", DOCTOR, "--json", "--config", str(config)],
        ordinary_user,
    )
    config.unlink()
    assert (status, report["runner"]) == (2, None)
    assert "/no/such/bwrap" in str(report["reason"])


def test_a_config_that_is_not_there_is_an_error(tmp_path: Path):
    config = str(tmp_path / "none.toml")
    asked = argparse.Namespace(json=True, config=config, verify=False)
    with pytest.raises(ConfigError, match=r"none\.toml: no such file; check --config"):
        doctor_cmd.run(asked)


HELP = f"case $1 in --help) echo '{' '.join(doctor_walls._BWRAP_OPTIONS)}'; exit;; esac"


def test_a_bwrap_that_enforces_nothing_is_not_taken_for_one(tmp_path: Path):
    # Runs the command without any wall.
    script = f'{HELP}\nwhile [ "$1" != -- ]; do shift; done; shift; exec "$@"'
    finding = bwrap_finding(tmp_path, script)
    assert finding.state is MISSING
    assert "cannot build a cell" in finding.detail


def test_a_broken_bwrap_is_quoted(tmp_path: Path):
    finding = bwrap_finding(tmp_path, f"{HELP}\necho 'bwrap: no luck' >&2; exit 1")
    assert finding.state is MISSING
    assert "bwrap: no luck" in finding.detail


def test_an_old_bwrap_is_told_by_the_options_it_lacks(tmp_path: Path):
    finding = bwrap_finding(tmp_path, "echo '--unshare-user --version'")
    assert finding.state is MISSING
    assert "--args" in finding.detail


def test_a_bwrap_that_hangs_is_unknown_not_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(doctor_walls, "_TRY_S", 0.5)
    finding = bwrap_finding(tmp_path, f"{HELP}\nexec sleep 60")
    assert finding.state is UNKNOWN
    assert "did not answer" in finding.detail


def test_a_missing_bwrap_comes_with_how_to_get_it(tmp_path: Path):
    found = doctor_walls.look_at_walls(str(tmp_path), str(tmp_path / "no-bwrap"))
    finding = {finding.name: finding for finding in found}["bubblewrap"]
    assert finding.state is MISSING
    assert "install bubblewrap" in finding.advice


def test_the_report_for_a_person_names_runner_gaps_and_cures():
    found = findings(MISSING, OK, OK)
    text = doctor_cmd.as_text(found, judge(found, root=False))
    assert "runner: landlock (partial)" in text
    assert "gap: " in text
    assert "better: install bubblewrap" in text
    assert max(map(len, text.splitlines())) <= 88


def test_doctor_leaves_no_folder_behind(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-c", DOCTOR],
        env={"TMPDIR": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        check=False,
    )
    assert done.returncode in {0, 1, 2}
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("enabled", "backlog_limit", "state", "advice"),
    [
        (False, 64, State.LIMITED, "auditctl -e 1 -b 8192"),
        (True, 64, State.LIMITED, "auditctl -b 8192"),
        (True, 8192, State.OK, ""),
    ],
)
def test_audit_that_is_off_or_small_comes_with_the_command_to_change_it(
    enabled, backlog_limit, state, advice
):
    finding = judge_audit(enabled=enabled, backlog_limit=backlog_limit)
    assert finding.state is state
    assert advice in (finding.advice or "")


@pytest.mark.parametrize(
    ("setting", "state"),
    [("1", State.OK), ("0", State.LIMITED), (None, State.UNKNOWN)],
)
def test_who_may_link_whose_files_is_said(setting: str | None, state: State):
    finding = judge_hard_links(setting)
    assert finding.state is state
    assert bool(finding.advice) == (state is State.LIMITED)
