"""Goal: reach hardware, or turn a knob of the kernel's, from inside a command.

Uid 0 owns every device and every knob, so root's commands are the ones to be kept from
them; an ordinary user's must be kept from what the user's groups open. Nothing is written
to any of them: to open one for writing is enough to know.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adversarial.attack import Attack, makes, stopped, with_policies
from tests.kernel.test_tasks_terminal import at_terminal
from tests.support.stations import (
    ALL,
    CONFINING,
    FULL_ACCESS,
    ROOT_BWRAP,
    ROOT_LANDLOCK,
    SERVED_BWRAP,
    SERVED_LANDLOCK,
    Station,
    on,
    sys_python,
)

ROOTS = on(ROOT_BWRAP, ROOT_LANDLOCK)
KNOBS = (
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/modprobe",
    "/proc/sys/kernel/hotplug",
    "/proc/sys/kernel/hostname",
    "/proc/sys/vm/drop_caches",
    "/proc/sys/net/ipv4/ip_forward",
    "/proc/sys/fs/binfmt_misc/register",
    "/proc/sysrq-trigger",
    "/proc/irq/default_smp_affinity",
    "/sys/kernel/uevent_helper",
    "/sys/kernel/profiling",
    "/sys/kernel/mm/transparent_hugepage/enabled",
    "/sys/power/state",
    "/sys/module/printk/parameters/time",
    "/sys/fs/cgroup/cgroup.procs",
    "/sys/fs/cgroup/cgroup.subtree_control",
    "/sys/fs/cgroup/release_agent",
    "/sys/fs/cgroup/memory/release_agent",
    "/sys/fs/cgroup/pids/release_agent",
)
OPEN_ALL = """
import errno, json, os, sys
seen = {}
for path in json.loads(sys.argv[1]):
    try:
        os.close(os.open(path, os.O_RDONLY if sys.argv[2] == "r" else os.O_WRONLY))
        seen[path] = "opened"
    except OSError as error:
        seen[path] = errno.errorcode[error.errno]
print(json.dumps(seen))
"""
HARMLESS = {
    *("null", "zero", "full", "random", "urandom", "tty", "ptmx", "console"),
    *("fd", "stdin", "stdout", "stderr", "core", "pts", "shm", "mqueue", "log"),
}
"""Of /dev: what any program may have, and what is no device."""


def opened(station: Station, paths: list[str], how: str, mode: str) -> set[str]:
    """Return those of *paths* that a command can open."""
    seen = station.parse(
        station.run(
            f"{sys_python()} -I - '{json.dumps(paths)}' {how}",
            mode,
            stdin=OPEN_ALL.encode(),
        )
    )
    return {path for path, outcome in seen.items() if outcome == "opened"}


@ROOTS
def test_no_knob_of_the_kernels_can_be_turned_by_root(station: Station):
    free = opened(station, list(KNOBS), "w", FULL_ACCESS)
    assert "/proc/sys/kernel/core_pattern" in free, "without walls root may"
    for mode in CONFINING:
        assert opened(station, list(KNOBS), "w", mode) == set()


@pytest.mark.parametrize("mode", CONFINING)
def test_no_knob_that_is_found_anywhere_can_be_turned(station: Station, mode: str):
    """Whatever the kernel has: everything in /proc and /sys whose mode would allow it."""
    find = (
        "find /proc/sys /sys/kernel /sys/fs /sys/module /sys/power /sys/class/block/"
        " -xdev -type f -writable 2>/dev/null | head -3000"
    )
    found = station.text(f"{find}; true", FULL_ACCESS).split()
    if station.caller.is_root:
        assert len(found) > 100, "without walls there are many"
    # `-writable` asks access(2), which says what the mounts and modes do; Landlock is
    # not asked there, so each is tried.
    still = station.text(f"{find}; true", mode).split()
    for start in range(0, len(still), 500):
        assert opened(station, still[start : start + 500], "w", mode) == set()


@ROOTS
@pytest.mark.parametrize("kind", [stat.S_IFBLK, stat.S_IFCHR], ids=["block", "char"])
def test_no_device_node_is_made(station: Station, kind: int):
    node = station.workspace / "node"
    letter, number = ("b", "7 0") if kind == stat.S_IFBLK else ("c", "1 3")
    attack = Attack(
        f"mknod {node} {letter} {number}",
        makes(node),
        lambda: node.unlink(missing_ok=True),
    )
    for mode in CONFINING:
        stopped(station, attack, mode)


@ROOTS
def test_roots_devices_are_out_of_its_commands_reach(station: Station):
    """Disks, memory, ports, the kernel's log, fuse, input, virtual machines."""
    every = [
        str(path)
        for path in Path("/dev").iterdir()
        if path.name not in HARMLESS
        and not path.is_symlink()
        and (path.is_block_device() or path.is_char_device())
        # To open some of these is to begin something.
        and not path.name.startswith(("watchdog", "tty", "vcs", "autofs"))
    ]
    free = opened(station, every, "r", FULL_ACCESS)
    assert len(free) >= 3, "without walls some can be opened"
    for mode in CONFINING:
        for how in ("r", "w"):
            assert opened(station, every, how, mode) == set()


@pytest.fixture
def own_device(station: Station) -> Iterator[Path]:
    """A device that is the caller's, as a group or a login opens some."""
    device = Path(f"/dev/bashd-test-{secrets.token_hex(4)}")
    os.mknod(device, 0o600 | stat.S_IFCHR, os.makedev(1, 5))
    try:
        os.chown(device, station.caller.uid, station.caller.gid)
        yield device
    finally:
        device.unlink()


@pytest.mark.parametrize("mode", CONFINING)
def test_a_device_that_the_caller_may_use_is_out_of_its_commands_reach(
    station: Station, own_device: Path, mode: str
):
    for how in ("r", "w"):
        assert opened(station, [str(own_device)], how, FULL_ACCESS)
        assert not opened(station, [str(own_device)], how, mode)


@on(*ALL)
def test_the_devices_that_programs_need_are_there(station: Station):
    for mode in CONFINING:
        said = station.text(
            "echo x > /dev/null; head -c 2 /dev/zero | wc -c;"
            " head -c 2 /dev/urandom | wc -c; : < /dev/full",
            mode,
        )
        assert said.split() == ["2", "2"]


@on(ROOT_BWRAP, ROOT_LANDLOCK, SERVED_BWRAP, SERVED_LANDLOCK)
def test_a_granted_device_is_there_and_no_other(station: Station):
    device, other = "/dev/loop-control", "/dev/fuse"
    if not Path(device).exists() or not Path(other).exists():
        device, other = sorted(
            str(p)
            for p in Path("/dev").iterdir()
            if p.name not in HARMLESS and p.is_char_device() and not p.is_symlink()
        )[:2]
    session = with_policies(
        station, granted=f'mode = "workspace-write"\ndevices = ["{device}"]\n'
    )
    look = f"test -c {device} && echo there; test -r {device} && : < {device} && echo opened"
    if station.caller.is_root:
        assert station.text(look, FULL_ACCESS) == "there\nopened\n"
        assert "opened" not in station.run(look).stdout.text
        assert session.run(look, policy="granted").stdout.text == "there\nopened\n"
    else:
        # A grant opens no more than the user may open.
        assert "there" in session.run(look, policy="granted").stdout.text
        assert "opened" not in session.run(look, policy="granted").stdout.text
    assert (
        "opened"
        not in session.run(f": < {other} && echo opened", policy="granted").stdout.text
    )


PUSH = """
import ctypes, errno, os
seen = []
for fd, request in ((0, 0x5412), (0, 0x5412 | 1 << 32), (0, 0x541C), (-1, 0x5412)):
    try:
        if fd < 0:
            fd = os.open("/dev/tty", os.O_RDWR)
        libc = ctypes.CDLL(None, use_errno=True)
        number = {"x86_64": 16, "aarch64": 29}[os.uname().machine]
        byte = ctypes.create_string_buffer(b"i")
        done = libc.syscall(ctypes.c_long(number), ctypes.c_long(fd),
                            ctypes.c_long(request), byte)
        seen.append("done" if done >= 0 else errno.errorcode[ctypes.get_errno()])
    except OSError as error:
        seen.append(errno.errorcode[error.errno])
print("SEEN", *seen)
"""


@pytest.mark.parametrize("mode", CONFINING)
def test_nothing_is_typed_for_the_person_at_the_terminal(station: Station, mode: str):
    """At stdin and /dev/tty, also by bits that the kernel ignores (CVE-2019-10063)."""
    program = station.make("workspace/push.py", PUSH)
    command = f"{sys_python()} -I {program}"

    def push(how: str, outcome: str) -> None:
        with at_terminal(station, "-t", "--mode", how, "--", command) as typist:
            typist.see(f"SEEN {outcome}")
            typist.status()

    push(mode, "EPERM EPERM EPERM EPERM")
    if station.caller.is_root:
        # Others may not on a kernel with dev.tty.legacy_tiocsti=0, which says EIO.
        push(FULL_ACCESS, "done")
