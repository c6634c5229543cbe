"""Goal: get out of the walls by way of /proc, of other processes, or by taking them down.

The outsider is a process of the caller's that these tests have started; it stands in for
every process on the machine.
"""

from __future__ import annotations

import contextlib
import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bashd.core.confinement import LANDLOCK_GAPS
from tests.adversarial.attack import Attack, makes, running, stopped
from tests.support.stations import (
    CONFINING,
    FULL_ACCESS,
    ROOT_BWRAP,
    ROOT_LANDLOCK,
    SERVED_LANDLOCK,
    UNDER_BWRAP,
    UNDER_LANDLOCK,
    USER_BWRAP,
    WORKSPACE_WRITE,
    Station,
    on,
    sys_python,
)

if TYPE_CHECKING:
    from collections.abc import Generator

THROUGH_PROC = """
import errno, json, os, subprocess, sys
pid, folder = sys.argv[1:]
def write(path):
    with open(path, "ab") as file:
        file.write(b"x")
def program():
    # As a container's escape does it: its own program, once nobody runs it any more.
    child = subprocess.Popen([folder + "/program", "600"])
    held = os.open(f"/proc/{child.pid}/exe", os.O_RDONLY)
    child.kill()
    child.wait()
    write(f"/proc/self/fd/{held}")
def descriptor():
    held = [name for name in os.listdir(f"/proc/{pid}/fd") if name == "7"]
    write(f"/proc/{pid}/fd/" + (held or ["7"])[0])
WAYS = {
    "its root": lambda: write(f"/proc/{pid}/root{folder}/root"),
    "a thread's root": lambda: write(f"/proc/{pid}/task/{pid}/root{folder}/thread"),
    "its folder": lambda: write(f"/proc/{pid}/cwd/folder"),
    "its descriptor": descriptor,
    "own root": lambda: write(f"/proc/self/root{folder}/own"),
    "the first one's root": lambda: write(f"/proc/1/root{folder}/first"),
    "a program": program,
}
seen = {}
for name, way in WAYS.items():
    try:
        way()
        seen[name] = "through"
    except OSError as error:
        seen[name] = errno.errorcode[error.errno]
print(json.dumps(seen))
"""
CANARIES = ("root", "thread", "folder", "descriptor", "own", "first")


@contextlib.contextmanager
def outsider(station: Station, *, argv: tuple[str, ...] = ()) -> Generator[int]:
    """Run an unconfined process of the caller's, in `outside`, with a file open at 7."""
    held = 'cd "$0"; exec 7>> descriptor; shift 0; exec "$@"'
    words = argv or ("sleep", "600")
    with running(station, "sh", "-c", held, str(station.outside), *words) as process:
        # `running` may have put a program between: the outsider is who has the file.
        yield find(process.pid, "descriptor")


def find(pid: int, name: str) -> int:
    """Return which of a process and its descendants has a file open at 7."""
    while True:
        for candidate in (pid, *descendants(pid)):
            with contextlib.suppress(OSError):
                if Path(f"/proc/{candidate}/fd/7").readlink().name == name:
                    return candidate


def descendants(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    children = [int(word) for word in text.split()]
    return children + [low for child in children for low in descendants(child)]


@pytest.mark.parametrize("mode", CONFINING)
def test_no_link_in_proc_leads_out(station: Station, mode: str):
    for name in CANARIES:
        station.make(f"outside/{name}")
    program = station.make("outside/program", "")
    program.write_bytes(Path("/bin/sleep").read_bytes())
    program.chmod(0o755)
    length = program.stat().st_size
    attack = f"{sys_python()} -I - {{}} {station.outside}"

    with outsider(station) as pid:
        free = station.parse(
            station.run(attack.format(pid), FULL_ACCESS, stdin=THROUGH_PROC.encode())
        )
        # Of the first process the outsider knows nothing, not even where it lives.
        free.pop("the first one's root")
        assert set(free.values()) == {"through"}, free
        assert program.stat().st_size == length + 1
        for name in CANARIES:
            station.make(f"outside/{name}")
        walled = station.parse(
            station.run(attack.format(pid), mode, stdin=THROUGH_PROC.encode())
        )
    assert "through" not in walled.values(), walled
    assert program.stat().st_size == length + 1
    for name in CANARIES:
        assert (station.outside / name).read_text() == "canary\n", name


@on(*UNDER_BWRAP)
def test_the_hosts_pids_mean_nothing_in_a_cell(station: Station):
    with outsider(station) as pid:
        here = station.text("echo $$ $PPID; ls /proc | grep -c '^[0-9]*$'").split()
        assert int(here[0]) < 10_000
        assert int(here[2]) < 50
        assert "outside" not in station.text(f"readlink /proc/{pid}/cwd; true")


RENICE = """
import ctypes, errno, json, os
libc = ctypes.CDLL(None, use_errno=True)
numbers = {"x86_64": (141, 251), "aarch64": (140, 30)}[os.uname().machine]
last = 2 << 13 | 7  # IOPRIO_CLASS_BE
seen = {}
for high in (0, 1 << 32):
    for name, arguments in (
        ("setpriority", (numbers[0], high | 2, 0, 19)),
        ("ioprio_set", (numbers[1], high | 3, os.getuid(), last)),
    ):
        done = libc.syscall(*map(ctypes.c_long, arguments))
        seen[f"{name} {high}"] = "done" if done == 0 else errno.errorcode[ctypes.get_errno()]
print(json.dumps(seen))
"""


@on(USER_BWRAP, SERVED_LANDLOCK)
@pytest.mark.parametrize("mode", CONFINING)
def test_a_users_other_processes_are_not_slowed_down(station: Station, mode: str):
    """By one call that names the user and no process."""
    if not station.caller.name.startswith("bashd-t-"):
        pytest.skip("would slow down the developer's own processes")
    uid = station.caller.uid
    with outsider(station) as pid:
        before = os.getpriority(os.PRIO_PROCESS, pid)
        assert set(station.python(RENICE, FULL_ACCESS).values()) == {"done"}
        assert os.getpriority(os.PRIO_PROCESS, pid) == 19
        os.setpriority(os.PRIO_USER, uid, before)
        assert set(station.python(RENICE, mode).values()) == {"EPERM"}
        assert os.getpriority(os.PRIO_PROCESS, pid) == before


LAYER = """
import ctypes, json, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(*arguments):
    wide = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return libc.syscall(*wide)
# A layer that handles writing to files, and allows it everywhere.
rules = call(444, struct.pack("QQQ", 2, 0, 0), 8, 0)
root = os.open("/", os.O_PATH)
call(445, rules, 1, struct.pack("=Qi", 2, root), 0)
for step in (
    lambda: libc.prctl(38, 1, 0, 0, 0),  # PR_SET_NO_NEW_PRIVS
    lambda: call(446, rules, 0),
    lambda: libc.prctl(1, 0, 0, 0, 0),  # PR_SET_PDEATHSIG
    lambda: libc.prctl(4, 1, 0, 0, 0),  # PR_SET_DUMPABLE
    lambda: libc.prctl(38, 0, 0, 0, 0),
    lambda: libc.prctl(8, 1, 0, 0, 0),  # PR_SET_KEEPCAPS
    lambda: libc.prctl(47, 2, 21, 0, 0),  # PR_CAP_AMBIENT_RAISE, CAP_SYS_ADMIN
    lambda: os.setsid(),
):
    try:
        step()
    except OSError:
        pass
os.execv("/bin/sh", ["sh", "-c", "echo x >> " + sys.argv[1]])
"""


@pytest.mark.parametrize("mode", CONFINING)
def test_nothing_a_process_asks_for_itself_widens_its_walls(
    station: Station, mode: str
):
    canary = station.make("outside/canary")
    command = f"{sys_python()} -I - {canary}"
    station.run(command, FULL_ACCESS, stdin=LAYER.encode())
    assert canary.read_text() == "canary\nx\n", "without walls it writes"
    canary.write_text("canary\n")
    station.run(command, mode, stdin=LAYER.encode())
    assert canary.read_text() == "canary\n"


@pytest.mark.parametrize("mode", CONFINING)
def test_a_statically_linked_program_meets_the_same_walls(station: Station, mode: str):
    """There is nothing in the libraries that a program could do without."""
    canary = station.make("outside/canary")
    source = station.make(
        "workspace/writer.c",
        "#include <fcntl.h>\n#include <unistd.h>\nint main(int n, char **v) {"
        " return write(open(v[1], O_WRONLY | O_APPEND), v[1], 1) != 1; }\n",
    )
    writer = station.workspace / "writer"
    station.text(f"gcc -static -o {writer} {source}")
    attack = Attack(
        f"env -i {writer} {canary}",
        lambda _result: canary.read_text() != "canary\n",
        lambda: canary.write_text("canary\n"),
    )
    stopped(station, attack, mode)


OTHER_ENTRY = """
import ctypes, mmap
# mov eax, 20; int 0x80; ret: getpid, by the 32-bit entry
code = b"\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\xc3"
page = mmap.mmap(-1, 4096, prot=7)
page.write(code)
function = ctypes.CFUNCTYPE(ctypes.c_int)(
    ctypes.addressof(ctypes.c_char.from_buffer(page)))
print(function())
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="other entries are x86's")
@pytest.mark.parametrize("mode", CONFINING)
def test_the_32_bit_entry_is_closed(station: Station, mode: str):
    """Its numbers are others, so that every rule about a call would miss."""
    free = station.python(OTHER_ENTRY, FULL_ACCESS)
    assert free > 0 or free == -38, "the kernel may have been built without"
    assert station.python(OTHER_ENTRY, mode) == -38


@on(*UNDER_BWRAP)
def test_the_first_process_of_a_cell_cannot_be_ended(station: Station):
    before = station.text("readlink /proc/self/ns/pid")
    # Elsewhere pid 1 is the machine's own: never without that namespace.
    host = Path("/proc/self/ns/pid").readlink()
    for number in ("KILL", "TERM", "INT", "STOP", "HUP"):
        station.run(
            f'test "$(readlink /proc/self/ns/pid)" != "{host}" && kill -{number} 1'
        )
    assert station.text("readlink /proc/self/ns/pid") == before


@on(ROOT_BWRAP, ROOT_LANDLOCK)
def test_the_namespaces_of_another_process_cannot_be_entered(station: Station):
    with outsider(station) as pid:
        attack = Attack(
            f"nsenter -t {pid} -m -- touch {station.outside}/entered",
            makes(station.outside / "entered"),
            lambda: (station.outside / "entered").unlink(missing_ok=True),
        )
        for mode in CONFINING:
            stopped(station, attack, mode)
            first = f"nsenter -t 1 -a -- touch {station.outside}/entered"
            station.run(first, mode)
            assert not (station.outside / "entered").exists()


class TestWhatWouldStartLater:
    """A command that ended cannot come back by way of somebody else's timetable."""

    PLACES = (
        *(".config/systemd/user", ".config/autostart", ".local/share/systemd/user"),
        *(".config/environment.d", ".local/share/dbus-1/services"),
    )

    @on(USER_BWRAP, SERVED_LANDLOCK)
    def test_a_users_own_services_and_start_up_are_out_of_reach(self, station: Station):
        home = station.give(station.folder / "home")
        for place in self.PLACES:
            planted = home / place / "later.service"
            attack = Attack(
                f"mkdir -p {planted.parent} && echo x > {planted}",
                makes(planted),
                lambda planted=planted: planted.unlink(missing_ok=True),
            )
            for mode in CONFINING:
                stopped(station, attack, mode)

    @on(ROOT_BWRAP, ROOT_LANDLOCK)
    def test_the_systems_timetables_are_out_of_roots_commands_reach(
        self, station: Station
    ):
        # No program that reads these folders takes a name with such an end.
        name = f"bashd-canary-{station.folder.name}~"
        wanted = ("/etc/cron.d", "/var/spool/cron", "/var/spool/cron/crontabs")
        wanted += ("/var/spool/at", "/etc/systemd/system", "/run/systemd/system")
        places = [place for place in wanted if Path(place).is_dir()]
        assert places
        for place in places:
            planted = Path(place, name)
            attack = Attack(
                f"echo '#' > {planted}",
                makes(planted),
                lambda planted=planted: planted.unlink(missing_ok=True),
            )
            for mode in CONFINING:
                stopped(station, attack, mode)

    @pytest.mark.parametrize("mode", CONFINING)
    def test_nohup_disown_and_daemons_end_with_their_session(
        self, station: Station, mode: str
    ):
        mark = f"later-{station.folder.name}"
        command = (
            f"nohup bash -c 'exec -a {mark} sleep 600' >/dev/null 2>&1 & disown;"
            f" setsid -f bash -c 'exec -a {mark} sleep 600' >/dev/null 2>&1;"
            f" (( bash -c 'exec -a {mark} sleep 600' ) >/dev/null 2>&1 &) ; sleep 0.2"
        )
        other = station.open()
        other.run(command, mode=mode)
        assert station.processes(mark)
        other.sessions.close(other.session.session_id)
        assert station.processes(mark) == []


@contextlib.contextmanager
def shout_at_another_terminal(station: Station) -> Generator[str]:
    """A command that writes to a terminal of the caller's, shown to work unconfined."""
    controlling, terminal = os.openpty()
    try:
        name = os.ttyname(terminal)
        os.chown(name, station.caller.uid, -1)
        command = f"echo through > {name}"
        station.text(command, FULL_ACCESS)
        assert b"through" in os.read(controlling, 64)
        yield command
    finally:
        os.close(controlling)
        os.close(terminal)


@on(*UNDER_LANDLOCK)
def test_other_terminals_and_processes_can_be_seen_and_that_is_a_gap(station: Station):
    """No right of Landlock's tells one terminal from another; doctor says so."""
    with shout_at_another_terminal(station) as command:
        result = station.run(command, WORKSPACE_WRITE)
        assert result.sandbox is not None
        if result.exit_code == 0:
            assert result.sandbox.enforcement == "partial"
            assert any("terminals" in gap for gap in LANDLOCK_GAPS)
        with outsider(station) as pid:
            assert str(pid) in station.text("ls /proc").split()
        assert any("processes" in gap for gap in LANDLOCK_GAPS)


@on(*UNDER_BWRAP)
def test_other_terminals_are_not_in_a_cell(station: Station):
    with shout_at_another_terminal(station) as command:
        for mode in CONFINING:
            assert station.run(command, mode).exit_code != 0
