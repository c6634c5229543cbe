"""The workspace is a folder, not a name: made again, replaced, or reached by a link.

What a session works in is decided by where its path leads now, opened anew for each
call; a command is in the right folder, or the call says what is in the way.
"""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bashd.core.errors import StartError
from tests.support.stations import (
    CONFINING,
    FULL_ACCESS,
    READ_ONLY,
    ROOT_BWRAP,
    SERVED_BWRAP,
    USER_LANDLOCK,
    WORKSPACE_WRITE,
    Station,
    on,
)

if TYPE_CHECKING:
    from collections.abc import Callable

SOME = (ROOT_BWRAP, USER_LANDLOCK, SERVED_BWRAP)
MODES = (*CONFINING, FULL_ACCESS)


def warm_up(station: Station) -> None:
    """Have a cell for every mode, so that the next command finds an old one."""
    for mode in MODES:
        assert station.text("pwd -P", mode) == f"{station.workspace}\n"


def remake(station: Station) -> None:
    """Remove the workspace and make it anew."""
    shutil.rmtree(station.workspace)
    station.give(station.workspace)


def assert_is_here(station: Station, mark: str) -> None:
    """All modes are in the folder with *mark*; workspace-write may write there."""
    for mode in MODES:
        assert station.text("ls", mode) == f"{mark}\n", mode
    station.text("echo new > written")
    assert (station.workspace / "written").read_text() == "new\n"
    (station.workspace / "written").unlink()
    assert station.run("echo x > written", READ_ONLY).exit_code == 1


def test_deleted_and_made_again(station: Station):
    warm_up(station)
    for number in range(2):
        # The new folder often gets the old one's inode number.
        remake(station)
        station.make(f"workspace/mark-{number}")
        assert_is_here(station, f"mark-{number}")


def test_replaced_by_another_folder(station: Station):
    warm_up(station)
    for number in range(2):
        other = station.give(station.folder / "other")
        station.make(f"other/mark-{number}")
        station.workspace.rename(station.folder / f"old-{number}")
        other.rename(station.workspace)
        assert_is_here(station, f"mark-{number}")
    # What it was before is out of reach for writes.
    old = station.folder / "old-1"
    assert station.run(f"echo x > {old}/late").exit_code == 1
    assert not (old / "late").exists()


def test_deleted_while_the_session_waits(station: Station):
    warm_up(station)
    shutil.rmtree(station.workspace)
    for mode in MODES:
        with pytest.raises(StartError, match="ENOENT: No such file or directory"):
            station.run("echo x > here", mode)
    assert not station.workspace.exists()
    station.give(station.workspace)
    assert station.text("echo back > here; cat here") == "back\n"


def test_replaced_by_a_link_is_refused(station: Station):
    warm_up(station)
    station.workspace.rmdir()
    station.link(station.workspace, str(station.outside))
    for mode in CONFINING:
        with pytest.raises(StartError, match="symbolic link"):
            station.run("echo x > here", mode)
    assert list(station.outside.iterdir()) == []


@on(*SOME)
def test_replaced_by_a_file_is_refused(station: Station):
    warm_up(station)
    station.workspace.rmdir()
    station.make("workspace-file").rename(station.workspace)
    with pytest.raises(StartError, match="no folder"):
        station.run("true")
    station.workspace.unlink()
    station.give(station.workspace)


@on(*SOME)
def test_a_folder_on_the_way_that_is_moved_takes_the_workspace_along(
    station: Station,
):
    parent = station.give(station.folder / "parent")
    inner = station.give(parent / "inner")
    session = station.open(inner, mode=WORKSPACE_WRITE)
    assert session.run("pwd").stdout.text == f"{inner}\n"
    parent.rename(station.folder / "moved")
    with pytest.raises(StartError, match="ENOENT"):
        session.run("true")
    again = station.give(station.give(parent) / "inner")
    assert session.run("echo x > here && pwd").stdout.text == f"{again}\n"
    assert (again / "here").exists()
    assert not (station.folder / "moved" / "inner" / "here").exists()


def test_i68_reached_through_a_link(station: Station):
    link = station.link(station.folder / "link", str(station.workspace))
    session = station.open(link, mode=WORKSPACE_WRITE)
    assert session.session.cwd == str(station.workspace)
    said = session.run("pwd; pwd -P; cd -P . && pwd; echo $PWD; touch a").stdout.text
    assert said == f"{station.workspace}\n" * 4
    for spelling in (link, station.workspace):
        assert session.run(f"echo x > {spelling}/by-name").exit_code == 0
        (station.workspace / "by-name").unlink()
    inner = station.give(station.workspace / "real")
    station.link(station.workspace / "way", "real")
    result = session.run("touch b; touch ../real/c; pwd -P", workdir="way")
    assert (result.exit_code, result.stdout.text) == (0, f"{inner}\n"), result
    assert sorted(path.name for path in inner.iterdir()) == ["b", "c"]


def test_a_link_and_its_parent_are_where_chdir_lands(station: Station):
    deep = station.give(station.give(station.outside / "a") / "b")
    station.link(station.workspace / "link", str(deep))
    landed = station.run("pwd -P", workdir="link/..")
    assert landed.stdout.text == f"{deep.parent}\n"
    session = station.open(Path(f"{station.workspace}/link/.."), mode=WORKSPACE_WRITE)
    assert session.session.cwd == str(deep.parent)
    assert session.run("echo x > here").exit_code == 0
    assert (deep.parent / "here").exists()
    assert session.run(f"echo x > {station.workspace}/there").exit_code == 1


def test_e15_a_workdir_does_not_move_the_writable_root(station: Station):
    for workdir in (str(station.outside), "..", "/", "../outside"):
        result = station.run(f"pwd -P; echo x > {station.outside}/x", workdir=workdir)
        assert result.exit_code == 1, workdir
    assert list(station.outside.iterdir()) == []


@on(*SOME)
def test_a_workdir_that_is_not_there_is_said_to_be_missing(station: Station):
    station.make("workspace/file")
    for mode in MODES:
        for workdir, reason in (
            ("missing", "ENOENT: No such file or directory"),
            (f"{station.workspace}/missing/deeper", "ENOENT"),
            ("file", "ENOTDIR: Not a directory"),
        ):
            with pytest.raises(StartError, match=reason):
                station.run("true", mode, workdir=workdir)
    task = station.client.start("true", mode=READ_ONLY, workdir="missing")
    settled = station.client.wait(task.task_id)
    assert (settled.status, settled.exit_code, settled.signal) == ("killed", None, None)
    read = station.client.read_output(task.task_id)
    assert read is not None
    assert "spawn failed: " in read.delta
    assert "ENOENT" in read.delta
    again = station.client.read_output(task.task_id)
    assert again is not None
    assert again.delta == ""


@on(*SOME)
def test_a_workdir_may_be_a_folder_that_a_cell_has_of_its_own(station: Station):
    name = f"bashd-{secrets.token_hex(6)}"
    made = station.run(f"mkdir $TMPDIR/{name} && cd $TMPDIR/{name} && pwd")
    folder = made.stdout.text.strip()
    # There is one cell for all of these.
    for workdir in (folder, "/tmp", "/var/tmp", "/dev/shm", "/run"):
        result = station.run("pwd -P", workdir=workdir)
        assert (result.exit_code, result.stdout.text) == (0, f"{workdir}\n"), result
    landed = station.run("echo x > made && cat made", workdir=folder)
    assert landed.stdout.text == "x\n", landed
    assert not Path("/tmp", name).exists()
    with pytest.raises(StartError, match="ENOENT: No such file"):
        station.run("true", workdir=f"/tmp/{name}-missing")


@on(ROOT_BWRAP, SERVED_BWRAP)
def test_a_workdir_that_a_policy_hides_is_said_to_be_hidden(
    station: Station, policy_folder: Callable[..., dict[str, str]]
):
    hidden = station.give(station.folder / secrets.token_hex(4))
    policy = f'mode = "workspace-write"\nmasked = ["{hidden}"]\n'
    environ = station.environ | policy_folder(hiding=policy)
    with (
        station.another(policy="hiding", environ=environ) as session,
        pytest.raises(StartError, match="its policy hides it"),
    ):
        session.run("true", workdir=str(hidden))


@on(*SOME)
def test_a_name_with_odd_characters_is_a_name(station: Station):
    for name in ("with space", "quo'te\"s", "new\nline", "back\\slash", "-dash", "ü"):
        folder = station.give(station.folder / name)
        session = station.open(folder, mode=WORKSPACE_WRITE)
        result = session.run("pwd && echo x > here")
        assert result.stdout.text == f"{folder}\n", result
        assert (folder / "here").exists()


@on(SERVED_BWRAP)
def test_a_folder_behind_a_link_that_is_closed_is_said_to_be(station: Station):
    """Of root's first process; other users may not even read where it leads."""
    with pytest.raises(StartError, match="working folder /proc/1/cwd: ELOOP"):
        station.run("pwd", workdir="/proc/1/cwd")
