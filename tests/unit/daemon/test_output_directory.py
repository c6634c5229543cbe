"""The folder of output files against umasks, other users and planted names."""

from __future__ import annotations

import os
import re
import stat

import pytest

from bashd.core.errors import HostError
from bashd.daemon.output import OutputDirectory
from tests.unit.daemon.output_stage import stage

OTHER_UID = 61234


@pytest.fixture(params=[0o000, 0o777])
def umask(request):
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
def test_folder_and_files_are_private_whatever_the_umask():
    with stage() as built:
        fd = built.directory.create(built.directory.reserve_name("stdout"))
        modes = [
            stat.S_IMODE(os.fstat(fd).st_mode),
            built.folder.stat().st_mode & 0o777,
        ]
        os.close(fd)
    assert modes == [0o600, 0o700]


def test_a_name_carries_pid_counter_twelve_hex_digits_and_the_stream(made):
    names = [made.directory.reserve_name("stderr") for _ in range(3)]
    shape = re.compile(rf"bashd-{os.getpid()}-(\d+)-([0-9a-f]{{12}})-stderr\.log")
    matches = [shape.fullmatch(name) for name in names]
    assert [match and match[1] for match in matches] == ["1", "2", "3"]
    assert len({match and match[2] for match in matches}) == 3


def test_a_link_planted_under_the_next_name_is_not_followed(made, tmp_path):
    canary = tmp_path / "canary"
    canary.write_text("untouched")
    name = made.directory.reserve_name("stdout")
    (made.folder / name).symlink_to(canary)
    with pytest.raises(FileExistsError):
        made.directory.create(name)
    with pytest.raises(OSError, match="symbolic links"):
        made.directory.open(name)
    made.directory.remove(name)
    assert canary.read_text() == "untouched"


def test_a_hard_link_to_another_file_is_not_opened(made, tmp_path):
    canary = tmp_path / "canary"
    canary.write_text("untouched")
    name = made.directory.reserve_name("stdout")
    os.link(canary, made.folder / name)
    with pytest.raises(OSError, match="plain file"):
        made.directory.open(name)


def test_a_planted_fifo_neither_blocks_nor_opens(made):
    name = made.directory.reserve_name("stdout")
    os.mkfifo(made.folder / name)
    with pytest.raises(OSError, match="plain file"):
        made.directory.open(name)


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "bashd-1-1-x-stdout.log", ""])
def test_only_names_of_output_files_are_opened(made, name):
    with pytest.raises(OSError, match="name of an output file"):
        made.directory.open(name)


def test_a_folder_that_is_a_link_is_refused(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(HostError, match="output folder"):
        OutputDirectory(str(tmp_path / "link"), os.geteuid(), os.getegid())


def test_a_missing_parent_is_a_clear_error(tmp_path):
    with pytest.raises(HostError, match="No such file or directory; check"):
        OutputDirectory(str(tmp_path / "no" / "x"), os.geteuid(), os.getegid())


def test_a_folder_of_somebody_else_is_refused(tmp_path):
    (tmp_path / "x").mkdir()
    with pytest.raises(HostError, match="another user"):
        OutputDirectory(str(tmp_path / "x"), OTHER_UID, OTHER_UID)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another's folder")
def test_root_makes_the_folder_and_its_files_the_peers(tmp_path):
    directory = OutputDirectory(str(tmp_path / "x"), OTHER_UID, OTHER_UID)
    fd = directory.create(directory.reserve_name("stdout"))
    owners = [os.fstat(fd), (tmp_path / "x").stat()]
    os.close(fd)
    directory.close()
    assert {(found.st_uid, found.st_gid) for found in owners} == {
        (OTHER_UID, OTHER_UID)
    }


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change owners")
def test_a_file_that_became_somebody_elses_is_not_opened(made):
    name = made.directory.reserve_name("stdout")
    os.close(made.directory.create(name))
    os.chown(made.folder / name, OTHER_UID, OTHER_UID)
    with pytest.raises(OSError, match="plain file"):
        made.directory.open(name)


def test_descriptors_do_not_reach_children(made):
    fd = made.directory.create(made.directory.reserve_name("stdout"))
    inheritable = os.get_inheritable(fd)
    os.close(fd)
    assert not inheritable
