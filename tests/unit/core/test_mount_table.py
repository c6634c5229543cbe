"""Mount tables and socket tables: every name of what is masked, and no other."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from bashd.core.mount_table import (
    MountEntry,
    bound_sockets,
    mount_of,
    other_names,
    parse_mountinfo,
)
from bashd.core.paths import folders_between, is_below

TABLE = (
    MountEntry("8:1", "/", "/"),
    MountEntry("8:2", "/", "/home"),
    MountEntry("8:2", "/u/.aws", "/mnt/aws"),
    MountEntry("8:2", "/", "/mnt/all"),
    MountEntry("8:2", "/u/.aws/deep/part", "/mnt/part"),
    MountEntry("8:3", "/u/.aws", "/mnt/other-disk"),
)


def test_a_masked_folder_is_found_at_every_mount_that_shows_it():
    names = other_names("/home/u/.aws", TABLE)
    assert set(names) == {"/mnt/aws", "/mnt/all/u/.aws", "/mnt/part"}


def test_a_neighbour_has_its_own_names():
    assert other_names("/home/u/.awsome", TABLE) == ("/mnt/all/u/.awsome",)
    assert other_names("/etc/shadow", TABLE) == ()


def test_a_later_mount_on_the_same_point_is_the_one_that_counts():
    table = (*TABLE, MountEntry("8:9", "/x", "/home"))
    found = mount_of("/home/u", table)
    assert found is not None
    assert found.device == "8:9"


def test_the_kernels_own_table_is_read():
    table = parse_mountinfo(Path("/proc/self/mountinfo").read_text())
    assert any(entry.point == "/" for entry in table)
    line = r"36 35 98:0 /a\040b /m\134n rw - ext4 /dev/root rw"
    assert parse_mountinfo(line) == (MountEntry("98:0", "/a b", "/m\\n"),)


@given(st.text())
def test_no_text_makes_the_parsers_raise(text: str):
    parse_mountinfo(text)
    bound_sockets(text)


def test_sockets_with_a_path_are_told_from_abstract_and_nameless_ones():
    text = (
        "Num       RefCount Protocol Flags    Type St Inode Path\n"
        "00: 00000002 00000000 00010000 0001 01 11 /run/a b.sock\n"
        "00: 00000003 00000000 00000000 0001 03 12\n"
        "00: 00000002 00000000 00010000 0001 01 13 @/tmp/.X11-unix/X0\n"
        "00: 00000003 00000000 00000000 0001 03 14 /run/a b.sock\n"
        "00: 00000002 00000000 00000000 0002 01 15 relative\n"
    )
    assert bound_sockets(text) == ("/run/a b.sock",)


NAME = st.text("ab.", min_size=1, max_size=3)


@given(st.lists(NAME, min_size=1, max_size=5), st.lists(NAME, max_size=5))
def test_folders_between_are_exactly_the_ancestors(top: list[str], rest: list[str]):
    root, path = "/" + "/".join(top), "/" + "/".join(top + rest)
    between = list(folders_between(path, root))
    assert len(between) == max(len(rest) - 1, 0)
    assert all(is_below(path, one) and one != path for one in between)
    assert all(is_below(one, root) and one != root for one in between)
    assert list(folders_between(root, path)) == []
