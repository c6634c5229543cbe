"""Cells are built from what the host is like, and the host does not hold still."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bashd.core.errors import LimitError
from tests.support.stations import (
    ROOT_BWRAP,
    SERVED_BWRAP,
    USER_BWRAP,
    Combination,
    Station,
    on,
)

OpenStation = Callable[..., Station]


def runner_that(act: str, folder: Path) -> Path:
    """Make a bubblewrap that does something before it becomes the real one."""
    script = folder / "bwrap"
    script.write_text(f'#!/bin/sh\n{act}\nexec bwrap "$@"\n')
    script.chmod(0o755)
    return script


@pytest.fixture
def shared_folder(reachable_tmp: Path, request: pytest.FixtureRequest) -> Path:
    folder = reachable_tmp / f"runner-{abs(hash(request.node.nodeid)):x}"
    folder.mkdir()
    folder.chmod(0o777)
    return folder


@pytest.mark.parametrize(
    "combination", [ROOT_BWRAP, USER_BWRAP, SERVED_BWRAP], ids="-".join
)
def test_a_name_may_vanish_between_plan_and_cell(
    open_station: OpenStation, combination: Combination, shared_folder: Path
):
    # As lock files do: /etc/shadow.lock matches a mask for as long as somebody is added.
    doomed = shared_folder / "doomed"
    script = runner_that(f'[ ! -s {doomed} ] || rm "$(cat {doomed})"', shared_folder)
    settings = {"sandbox": {"bwrap_path": str(script)}}
    station = open_station(combination, settings=settings)
    station.run("true", "read-only")
    victim = station.make("workspace/.envrc")
    doomed.write_text(str(victim))
    try:
        assert station.text("echo there") == "there\n"
        assert not victim.exists()
    finally:
        doomed.unlink()


@pytest.mark.parametrize("combination", [ROOT_BWRAP, USER_BWRAP], ids="-".join)
def test_a_name_may_come_and_go_while_a_cell_is_built(
    open_station: OpenStation, combination: Combination, shared_folder: Path
):
    victim_name, left = shared_folder / "victim", shared_folder / "left"
    script = runner_that(
        f"""[ -s {victim_name} ] && [ -s {left} ] && {{
            victim=$(cat {victim_name}) left=$(cat {left})
            rm -f "$victim"
            if [ "$left" -gt 1 ]; then echo $((left - 1)); fi > {left}
            (sleep 0.01; echo canary > "$victim") &
        }}""",
        shared_folder,
    )
    settings = {"sandbox": {"bwrap_path": str(script)}}
    station = open_station(combination, settings=settings)
    station.run("true", "read-only")
    victim = station.make("workspace/.envrc")
    left.write_text("5")
    left.chmod(0o666)
    victim_name.write_text(str(victim))
    assert station.text("cat .envrc") == "canary\n"
    # How often depends on who is quicker.
    assert left.read_text() != "5"


def test_a_bubblewrap_that_knows_no_sizes_makes_cells_all_the_same(
    open_station: OpenStation,
    shared_folder: Path,
    policy_folder: Callable[..., dict[str, str]],
):
    script = runner_that('[ "$1" = --help ] && exit 0', shared_folder)
    environ = policy_folder(small='mode = "read-only"\nlimits.shm_bytes = 4096')
    station = open_station(
        ROOT_BWRAP, environ=environ, settings={"sandbox": {"bwrap_path": str(script)}}
    )
    done = station.client.run("stat -f -c %b /dev/shm", policy="small")
    assert int(done.stdout.text) > 1, "it has the kernel's own size"


def test_masks_beyond_what_bubblewrap_takes_say_so(
    open_station: OpenStation, policy_folder: Callable[..., dict[str, str]]
):
    environ = policy_folder(
        crowd='mode = "read-only"\nmasked = ["~/crowd-of-secrets/*"]'
    )
    station = open_station(USER_BWRAP, environ=environ)
    crowd = station.caller.home / "crowd-of-secrets"
    station.as_caller("mkdir", str(crowd))
    station.as_caller("sh", "-c", f"cd {crowd} && seq 3200 | xargs touch")
    try:
        with pytest.raises(LimitError, match="mask a folder instead"):
            station.client.run("true", policy="crowd")
    finally:
        shutil.rmtree(crowd)


def test_i07_a_config_that_is_rewritten_outside_all_the_time_stops_nobody(
    station: Station,
):
    station.as_caller("git", "init", "-q", str(station.workspace))
    over = threading.Event()
    outside: list[subprocess.CompletedProcess[str]] = []

    def rewrite() -> None:
        while not over.is_set():
            outside.append(
                station.as_caller(
                    *("git", "-C", str(station.workspace)),
                    *("config", "canary.number", str(len(outside))),
                )
            )

    writer = threading.Thread(target=rewrite)
    writer.start()
    try:
        results = [station.run("echo there") for _ in range(12)]
    finally:
        over.set()
        writer.join()
    assert {result.stdout.text for result in results} == {"there\n"}
    assert outside
    assert not [done.stderr for done in outside if done.returncode]


@on(ROOT_BWRAP, USER_BWRAP)
def test_a_protected_file_that_is_replaced_outside_is_protected_again(station: Station):
    config = station.make("workspace/.git/config", "old\n")
    closed = "test -e .git/config -a ! -w .git/config"
    assert station.run(closed).exit_code == 0
    for number in range(3):
        # Twice, so that the second gets the number of an inode that was there before.
        for name in ("first", "second"):
            station.make(f"workspace/.git/{name}", f"{number}\n").rename(config)
        deadline = time.monotonic() + 10
        while station.run(closed).exit_code != 0:
            assert time.monotonic() < deadline, "the file stays open to commands"
            time.sleep(0.1)
    assert station.run("echo x >> .git/config").exit_code == 1
    assert config.read_text() == "2\n"


@on(ROOT_BWRAP, USER_BWRAP)
def test_a_protected_folder_that_is_replaced_outside_is_protected_at_once(
    station: Station,
):
    hooks = station.give(station.give(station.workspace / ".git") / "hooks")
    assert station.run("touch .git/hooks/pre-commit").exit_code == 1
    for _ in range(3):
        hooks.rmdir()
        station.give(hooks)
        assert station.run("touch .git/hooks/pre-commit").exit_code == 1
