"""Where cgroups may be made, read from the texts the kernel gives."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from bashd.core.policy import Limits
from bashd.daemon.cgroup_places import (
    Hierarchy,
    Mount,
    own_folder,
    parse_membership,
    parse_mounts,
)

HYBRID = """\
24 1 0:22 / /proc rw - proc proc rw
30 25 0:26 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw
31 25 0:27 / /sys/fs/cgroup/pids rw,relatime shared:10 - cgroup cgroup rw,pids
32 25 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
33 25 0:29 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
"""
PURE = "30 25 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
UNIFIED = Mount(Path("/sys/fs/cgroup"), "/", frozenset())


def test_only_hierarchies_that_kill_or_limit_are_found():
    assert parse_mounts(HYBRID) == [
        Mount(Path("/sys/fs/cgroup/unified"), "/", frozenset()),
        Mount(Path("/sys/fs/cgroup/pids"), "/", frozenset({"pids"})),
        Mount(Path("/sys/fs/cgroup/cpu,cpuacct"), "/", frozenset({"cpu"})),
    ]
    assert parse_mounts(PURE) == [UNIFIED]


def test_mount_point_with_a_space_is_read():
    (mount,) = parse_mounts("30 25 0:26 / /mnt/a\\040b rw - cgroup2 none rw\n")
    assert mount.point == Path("/mnt/a b")


def test_own_group_is_found_below_the_mount():
    membership = parse_membership("4:cpu,cpuacct:/x\n0::/user.slice/a:b.service\n")
    assert membership == {"cpu": "/x", "cpuacct": "/x", "": "/user.slice/a:b.service"}
    found = own_folder(UNIFIED, membership)
    assert found == Path("/sys/fs/cgroup/user.slice/a:b.service")


def test_part_of_a_hierarchy_that_is_mounted_alone_is_its_root():
    mount = Mount(Path("/cg"), "/docker/abc", frozenset())
    assert own_folder(mount, {"": "/docker/abc/job"}) == Path("/cg/job")
    assert own_folder(mount, {"": "/docker/abc"}) == Path("/cg")
    assert own_folder(mount, {"": "/docker/abcd"}) is None


def test_group_outside_of_what_is_in_sight_is_none():
    assert own_folder(UNIFIED, {"": "/../other"}) is None
    assert own_folder(UNIFIED, {"pids": "/x"}) is None


def test_memory_hierarchy_of_version_1_is_for_cells_with_that_limit_only():
    memory = Hierarchy(Path("/cg"), "memory", frozenset({"memory"}))
    assert not memory.is_for(Limits(pids=5))
    assert memory.is_for(Limits(memory_bytes=5))


@given(st.text(alphabet=" -/\\04\n:ab,cgroup2", max_size=200))
def test_no_text_makes_the_parsers_fail(text: str):
    parse_mounts(text)
    parse_membership(text)
