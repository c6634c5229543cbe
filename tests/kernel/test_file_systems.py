"""The walls are the same whatever file system the workspace lies on.

Landlock and the kernel's mounts know files by their inodes, and some file systems make
those up as they go. In memory, and merged from two layers.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.stations import (
    CONFINING,
    FULL_ACCESS,
    READ_ONLY,
    ROOT_BWRAP,
    ROOT_LANDLOCK,
    SERVED_LANDLOCK,
    USER_BWRAP,
    WORKSPACE_WRITE,
    Station,
    on,
)

if TYPE_CHECKING:
    from bashd.client import SyncClient

pytestmark = on(ROOT_BWRAP, USER_BWRAP, ROOT_LANDLOCK, SERVED_LANDLOCK)


def in_memory(_station: Station, disk: Path) -> list[str]:
    return ["-t", "tmpfs", "none", str(disk)]


def merged(station: Station, disk: Path) -> list[str]:
    """Both layers hold something; what is written moves from the lower to the upper."""
    layers = [
        station.give(station.folder / name) for name in ("lower", "upper", "work")
    ]
    lower, upper, work = layers
    (lower / "of-the-lower").write_text("canary\n")
    os.chown(lower / "of-the-lower", station.caller.uid, station.caller.gid)
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    return ["-t", "overlay", "none", "-o", options, str(disk)]


@dataclass
class Place:
    """A workspace on a file system of its own, and a folder beside it there."""

    station: Station
    session: SyncClient
    workspace: Path
    outside: Path

    def make(self, path: Path, content: str = "canary\n") -> Path:
        """Make a file of the caller's."""
        path.write_text(content)
        os.chown(path, self.station.caller.uid, self.station.caller.gid)
        return path


@pytest.fixture(params=[in_memory, merged])
def place(request: pytest.FixtureRequest, station: Station) -> Iterator[Place]:
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a file system")
    mount: Callable[[Station, Path], list[str]] = request.param
    disk = station.give(station.folder / "disk")
    subprocess.run(["mount", *mount(station, disk)], check=True)
    try:
        os.chown(disk, station.caller.uid, station.caller.gid)
        folders = [station.give(disk / name) for name in ("workspace", "outside")]
        with station.another(folders[0]) as session:
            yield Place(station, session, *folders)
            session.sessions.close(session.session.session_id)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_workspace_can_be_worked_in_and_read_only_holds(place: Place):
    work = "mkdir d && echo x > d/f && ln d/f g && mv g d/ && chmod 600 d/f && cat d/g"
    done = place.session.run(work, mode=WORKSPACE_WRITE)
    assert (done.exit_code, done.stdout.text) == (0, "x\n"), done
    for change in ("echo y >> d/f", "rm d/f", "touch new", "mv d e"):
        assert place.session.run(change, mode=READ_ONLY).exit_code != 0, change
    assert (place.workspace / "d/f").read_text() == "x\n"


def test_nothing_beside_it_is_changed_by_any_name(place: Place):
    canary = place.make(place.outside / "canary")
    beside = [canary, *place.outside.parent.glob("of-the-lower")]
    ways = (
        "echo x >> {}",
        "ln -s {} l; echo x >> l",
        "mv {} .; echo x >> canary; mv canary {}",
        "cp --reflink=auto {} c; echo x >> c; cat c > {}",
        "truncate -s 0 {}",
    )
    for path in beside:
        for way in ways:
            command = way.format(path, path)
            place.session.run(command, mode=FULL_ACCESS)
            changed = path.read_text() if path.exists() else ""
            assert changed != "canary\n", f"{command}: without walls it must work"
            place.make(path)
            place.session.run("rm -f l c canary of-the-lower", mode=FULL_ACCESS)
            for mode in CONFINING:
                place.session.run(command, mode=mode)
                assert path.read_text() == "canary\n", (mode, command)
                place.session.run("rm -f l c", mode=FULL_ACCESS)
    made = place.session.run(f"ln {canary} h && echo x >> h", mode=WORKSPACE_WRITE)
    assert made.exit_code != 0
    assert canary.read_text() == "canary\n"


def test_no_hook_is_planted_there(place: Place):
    station, hook = place.station, place.workspace / ".git/hooks/post-checkout"
    done = station.as_caller("git", "init", "-q", str(place.workspace))
    assert done.returncode == 0, done.stderr
    plant = f"echo '#!/bin/sh' > {hook}; chmod +x {hook}"
    place.session.run(plant, mode=FULL_ACCESS)
    assert os.access(hook, os.X_OK), "without walls it must work"
    hook.unlink()
    result = place.session.run(plant, mode=WORKSPACE_WRITE)
    assert not os.access(hook, os.X_OK)
    assert result.sandbox is not None
    assert result.sandbox.denied
