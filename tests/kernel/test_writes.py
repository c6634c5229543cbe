"""Writes: refused outside the workspace, possible inside it, metadata included.

Landlock alone does not mediate metadata (chmod, chown, utimes, setxattr); there the
claim is that enforcement is said to be partial.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tests.support.stations import (
    CONFINING,
    FULL_ACCESS,
    READ_ONLY,
    ROOT_BWRAP,
    ROOT_LANDLOCK,
    UNDER_BWRAP,
    UNDER_LANDLOCK,
    WORKSPACE_WRITE,
    Station,
    on,
)

CHANGES = Path(__file__).parent / "inside" / "changes.py"
METADATA = {"chmod", "chmod of the folder", "chown", "utime", "setxattr"}
FILES = (
    *("written", "appended", "cut", "truncated", "renamed", "moved", "replaced"),
    *("hardlinked", "linked", "removed", "chmodded", "chowned", "touched", "tagged"),
)
Tree = dict[str, tuple[object, ...]]


def canaries(station: Station, name: str) -> Path:
    """Make a folder of the caller's with a file for each way to change one."""
    folder = station.give(station.folder / name)
    for file in FILES:
        station.make(f"{name}/{file}")
    station.give(folder / "empty")
    return folder


def tree(folder: Path, *, metadata: bool = True) -> Tree:
    """Return what is in a folder: names, kinds and contents, and who may do what."""
    found: Tree = {}
    for path in (folder, *folder.rglob("*")):
        info = path.lstat()
        facts: list[object] = [stat.S_IFMT(info.st_mode)]
        if path.is_file() and not path.is_symlink():
            facts += [path.read_bytes(), info.st_nlink]
        if metadata:
            facts += [info.st_mode, info.st_uid, info.st_gid, info.st_mtime_ns]
            facts += os.listxattr(path, follow_symlinks=False)
        found[str(path.relative_to(folder))] = tuple(facts)
    return found


def test_every_change_outside_is_possible_without_walls(station: Station):
    folder = canaries(station, "outside/canaries")
    done = station.program(CHANGES, folder, mode=FULL_ACCESS)
    assert set(done.values()) == {"done"}, done
    assert (folder / "given").read_text() == "mine\n"
    assert (folder / "hardlinked").read_text() == "changed\n"
    assert (folder / "touched").stat().st_mtime == 1


@pytest.mark.parametrize("mode", CONFINING)
def test_no_change_outside_gets_through(station: Station, mode: str):
    folder = canaries(station, "outside/canaries")
    before = tree(folder, metadata=station.under_bwrap)
    done = station.program(CHANGES, folder, mode=mode)
    through = {name for name, outcome in done.items() if outcome == "done"}
    facts = station.run("true", mode).sandbox
    assert facts is not None
    if station.under_bwrap:
        assert through == set()
        assert facts.enforcement == "full"
    else:
        assert through <= METADATA
        assert facts.enforcement == "partial", "metadata is not mediated, so it is said"
    assert tree(folder, metadata=station.under_bwrap) == before


def test_every_change_inside_the_workspace_is_possible(station: Station):
    folder = canaries(station, "workspace/canaries")
    done = station.program(CHANGES, folder)
    assert set(done.values()) == {"done"}, done
    made = (folder / "new").stat()
    assert (made.st_uid, made.st_gid) == (station.caller.uid, station.caller.gid)
    assert stat.S_IMODE(made.st_mode) == 0o644


def test_read_only_holds_in_the_workspace_as_well(station: Station):
    folder = canaries(station, "workspace/canaries")
    before = tree(station.workspace, metadata=station.under_bwrap)
    done = station.program(CHANGES, folder, mode=READ_ONLY)
    through = {name for name, outcome in done.items() if outcome == "done"}
    assert through <= (set() if station.under_bwrap else METADATA)
    assert tree(station.workspace, metadata=station.under_bwrap) == before


@on(ROOT_BWRAP, ROOT_LANDLOCK)
@pytest.mark.parametrize("mode", CONFINING)
def test_root_cannot_write_where_only_root_may(station: Station, mode: str):
    name = f"bashd-canary-{station.folder.name}"
    places = [p for p in ("/etc", "/usr", "/root", "/var", "/srv") if Path(p).is_dir()]
    targets = " ".join(f"{place}/{name}" for place in places)
    free = station.run(f"mkdir {targets} && rmdir {targets}", FULL_ACCESS)
    assert free.exit_code == 0, free
    refused = station.run(f"mkdir {targets}", mode)
    assert refused.exit_code == 1
    assert refused.stderr.text.count("cannot create directory") == len(places)
    assert not [place for place in places if Path(place, name).exists()]
    for knob in ("/proc/sys/kernel/hostname", "/proc/sysrq-trigger", "/sys/kernel/mm"):
        done = station.run(f"test -e {knob} && chmod 700 {knob}; : >> {knob}", mode)
        assert done.exit_code != 0, knob


@on(*UNDER_BWRAP)
def test_tmp_and_shared_memory_are_the_sessions_own(station: Station):
    name = f"canary-{station.folder.name}"
    places = ("/tmp", "/var/tmp", "/dev/shm")
    for mode in CONFINING:
        written = " && ".join(f"echo x > {place}/{name}-{mode}" for place in places)
        assert station.run(written, mode).exit_code == 0
    listed = station.text("ls /tmp /var/tmp; stat -c %a /tmp /var/tmp /dev/shm")
    # One folder for all modes of the session, except for memory, which is the cell's.
    assert listed.count(f"{name}-{READ_ONLY}") == 2
    assert listed.count(f"{name}-{WORKSPACE_WRITE}") == 2
    assert listed.split()[-3:-1] == ["1777", "1777"]
    assert not [p for place in places for p in Path(place).glob(f"{name}*")]
    other = station.open(mode=WORKSPACE_WRITE)
    assert other.run("ls -A /tmp /var/tmp /dev/shm | grep -c canary").exit_code == 1


@on(*UNDER_BWRAP)
def test_run_shows_nothing_of_the_hosts_and_takes_nothing(station: Station):
    refused = station.run("mkdir /run/canary; echo x > /run/canary-file")
    assert refused.exit_code != 0
    seen = station.text("ls -A /run").split()
    assert set(seen) <= {"bashd", "systemd", "resolvconf", "NetworkManager"}


@on(*UNDER_LANDLOCK)
def test_scratch_is_the_sessions_folder_and_the_hosts_tmp_is_closed(station: Station):
    assert station.text("mktemp -p /tmp 2>/dev/null || echo closed") == "closed\n"
    made = Path(station.text("mktemp").strip())
    assert made.parent == Path(station.text("echo $TMPDIR").strip())
    assert made.is_relative_to(station.daemon.state_dir)
    # C191: shared memory is the host's there, so only workspace-write may have it.
    shared = f"/dev/shm/canary-{station.folder.name}"
    assert station.run(f"echo x > {shared}", READ_ONLY).exit_code == 1
    assert not Path(shared).exists()
    assert station.run(f"echo x > {shared} && rm {shared}").exit_code == 0


def test_c192_walls_hold_for_grandchildren_and_what_left_the_session(station: Station):
    canary = station.make("outside/canary")
    write = f"echo changed > {canary}"
    for command in (
        f"bash -c 'bash -c \"{write}\"'",
        f"setsid --wait bash -c '{write}'",
        f"(exec bash -c '{write}') & wait",
        f"find . -maxdepth 0 -exec sh -c '{write}' ';'",
        f"echo '{write}' | env -i bash",
    ):
        station.run(command)
        assert canary.read_text() == "canary\n", command


def test_a_denied_write_is_reported_with_its_path(station: Station):
    canary = station.make("outside/canary")
    result = station.run(f"echo changed > {canary}")
    assert result.exit_code == 1
    facts = result.sandbox
    assert facts is not None
    assert facts.denied
    assert [denial.path for denial in facts.denials] == [str(canary)]
    assert str(facts.mode) == WORKSPACE_WRITE
    assert facts.runner == station.runner
