"""Nobody outside does for a command what its walls do not let it do itself.

Buses, container engines, agents, terminals multiplexers, editors: they all listen on a
Unix socket and act with the user's rights. Real ones where they are installed.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.adversarial.attack import (
    CONNECT,
    Attack,
    listening,
    makes,
    prints,
    running,
    serving,
    stopped,
    with_policies,
)
from tests.support.stations import (
    CONFINING,
    FULL_ACCESS,
    READ_ONLY,
    SERVED_BWRAP,
    UNDER_BWRAP,
    UNDER_LANDLOCK,
    Station,
    on,
)

PRIVATE_PLACES = ("/run", "/tmp", "/var/tmp")


def wait_for(path: Path, within_s: float = 20) -> None:
    deadline = time.monotonic() + within_s
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} does not appear"
        time.sleep(0.01)


@contextlib.contextmanager
def place_of(station: Station, parent: str) -> Generator[Path]:
    """Make a folder of the caller's in a folder that is everybody's."""
    if not os.access(parent, os.W_OK):
        pytest.skip(f"{parent} is not ours to put a canary in")
    folder = Path(parent) / f"bashd-test-{secrets.token_hex(4)}"
    folder.mkdir(mode=0o755)
    os.chown(folder, station.caller.uid, station.caller.gid)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@pytest.fixture(params=PRIVATE_PLACES)
def place(request: pytest.FixtureRequest, station: Station) -> Iterator[Path]:
    with place_of(station, request.param) as folder:
        yield folder


def test_e02_sockets_in_run_and_tmp_are_out_of_reach(station: Station, place: Path):
    path = place / "docker.sock"
    with listening(str(path)):
        attack = Attack(f"{CONNECT} {path}", prints("deputy"))
        for mode in CONFINING:
            result = stopped(station, attack, mode)
            assert result.sandbox is not None
            assert result.sandbox.denied, "the refusal is attributed"


def test_e02_sockets_elsewhere_are_out_of_reach(station: Station):
    path = station.outside / "libvirt-sock"
    # In place before the cell is made, as services are.
    with listening(str(path), owner=station.caller.uid):
        result = stopped(station, Attack(f"{CONNECT} {path}", prints("deputy")))
        assert result.sandbox is not None
        assert result.sandbox.denied or station.under_bwrap


@on(*UNDER_BWRAP)
def test_a_service_that_starts_again_is_covered_again(station: Station):
    path = station.outside / "server"
    attack = Attack(f"{CONNECT} {path}", prints("deputy"))
    for _ in range(2):
        with listening(str(path), owner=station.caller.uid):
            stopped(station, attack)


def test_e02_a_container_engine_does_not_answer(station: Station):
    def answer(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: 6\r\n\r\nengine")

    with place_of(station, "/run") as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "podman.sock"))
        (folder / "podman.sock").chmod(0o777)
        listener.listen()
        with serving(listener, answer):
            command = (
                f"curl -s --max-time 5 --unix-socket {folder}/podman.sock http://x/"
            )
            stopped(station, Attack(command, prints("engine")))


def test_e01_a_session_bus_does_not_answer(station: Station):
    with place_of(station, "/run") as folder:
        bus = folder / "bus"
        with running(
            station,
            *("dbus-daemon", "--session", "--nofork", f"--address=unix:path={bus}"),
        ):
            wait_for(bus)
            command = (
                f"DBUS_SESSION_BUS_ADDRESS=unix:path={bus} dbus-send --session"
                " --print-reply --dest=org.freedesktop.DBus /"
                " org.freedesktop.DBus.ListNames"
            )
            stopped(station, Attack(command, prints("org.freedesktop.DBus")))


def test_e01_neither_systemd_nor_a_system_bus_is_there(station: Station):
    places = "/run/systemd/private /run/dbus /run/user /run/systemd/system"
    seen = station.text(f"ls -d {places} 2>/dev/null | wc -l; ls /run")
    if station.under_bwrap:
        # Name resolution and bashd's own library; nothing else of the host's.
        assert set(seen.split()) <= {"0", "1", "bashd", "systemd", "resolvconf"}
    # No bus and no manager: whatever the reason, nothing is started.
    marker = station.outside / "E01"
    for program in ("systemd-run --user --wait", "systemd-run --wait"):
        station.run(f"timeout 10 {program} touch {marker}")
        assert not marker.exists()


def test_e03_an_ssh_agent_is_neither_found_nor_reached(station: Station):
    with place_of(station, "/tmp") as folder:
        agent = folder / "agent.1"
        with running(station, "ssh-agent", "-D", "-a", str(agent)):
            wait_for(agent)
            # In the test's folder: the machine may have others' agents beside it.
            find = f"find /tmp /run -path '*/{folder.name}/agent.*' 2>/dev/null"
            command = f"SSH_AUTH_SOCK=${{FOUND:-$({find})}} ssh-add -l 2>&1; true"
            stopped(station, Attack(command, prints("no identities")))
            known = Attack(
                f"SSH_AUTH_SOCK={agent} ssh-add -l 2>&1; true", prints("no id")
            )
            stopped(station, known)


@on(SERVED_BWRAP)
def test_i12_one_agent_can_be_granted_and_nothing_beside_it(station: Station):
    with place_of(station, "/tmp") as folder:
        agent, other = folder / "agent.1", folder / "other.sock"
        with (
            running(station, "ssh-agent", "-D", "-a", str(agent)),
            listening(str(other)),
        ):
            wait_for(agent)
            granted = with_policies(
                station,
                environ={"SSH_AUTH_SOCK": str(agent)},
                signing='mode = "workspace-write"\nagents = ["ssh"]\n',
            )
            plain = granted.run("ssh-add -l", mode="workspace-write")
            assert plain.exit_code == 2
            assert plain.sandbox is not None
            allowed = granted.run(
                "ssh-add -l; ls $(dirname $SSH_AUTH_SOCK)", policy="signing"
            )
            assert "no identities" in allowed.stdout.text
            assert allowed.stdout.text.split()[-1] == "agent.1"
            beside = granted.run(f"{CONNECT} {other}", policy="signing")
            assert "deputy" not in beside.stdout.text


@on(SERVED_BWRAP)
def test_i12_a_commit_is_signed_with_a_granted_agent(station: Station):
    station.as_caller("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "outside/k")
    public = (station.outside / "k.pub").read_text().strip()
    with place_of(station, "/tmp") as folder:
        agent = folder / "agent.1"
        with running(station, "ssh-agent", "-D", "-a", str(agent)):
            wait_for(agent)
            added = station.as_caller(
                "ssh-add", "outside/k", env={"SSH_AUTH_SOCK": str(agent)}
            )
            assert added.returncode == 0, added.stderr
            (station.outside / "k").unlink()
            session = with_policies(
                station,
                environ={"SSH_AUTH_SOCK": str(agent)},
                signing='mode = "workspace-write"\nagents = ["ssh"]\n',
            )
            commit = (
                "git -c user.name=a -c user.email=a@b"
                f" -c gpg.format=ssh -c user.signingKey='key::{public}'"
                " commit -q -S --allow-empty -m signed && git cat-file -p HEAD"
            )
            assert session.run("git init -q .", mode="workspace-write").exit_code == 0
            refused = session.run(commit, mode="workspace-write")
            assert refused.exit_code != 0
            signed = session.run(commit, policy="signing")
            assert "BEGIN SSH SIGNATURE" in signed.stdout.text, signed


def test_e03_a_gpg_agent_is_not_reached(station: Station):
    home = station.give(station.folder / "gnupg")
    home.chmod(0o700)
    with running(
        station, "gpg-agent", "--homedir", str(home), "--daemon", "sleep", "600"
    ):
        agent = home / "S.gpg-agent"
        wait_for(agent)
        command = f"{CONNECT} {agent}"
        stopped(station, Attack(command, prints("OK")))


@on(SERVED_BWRAP)
def test_a_gpg_agent_can_be_granted_and_nothing_beside_it(station: Station):
    home = station.give(station.folder / "gnupg")
    home.chmod(0o700)
    station.make("gnupg/private", "the key\n")
    with running(
        station, "gpg-agent", "--homedir", str(home), "--daemon", "sleep", "600"
    ):
        agent = home / "S.gpg-agent"
        wait_for(agent)
        session = with_policies(
            station,
            environ={"GNUPGHOME": str(home)},
            signing=f'mode = "workspace-write"\nagents = ["gpg"]\nmasked = ["{home}"]\n',
        )
        talk = f"{CONNECT} {agent}"
        assert "OK" not in session.run(talk, mode="workspace-write").stdout.text
        assert "OK" in session.run(talk, policy="signing").stdout.text
        read = session.run(f"cat {home}/private", policy="signing")
        assert "the key" not in read.stdout.text
        beside = session.run(f"{CONNECT} {home}/S.gpg-agent.extra", policy="signing")
        assert "OK" not in beside.stdout.text


def test_e08_abstract_sockets_are_out_of_reach(station: Station):
    name = f"@bashd-test-{secrets.token_hex(8)}"
    with listening(name):
        for mode in CONFINING:
            stopped(station, Attack(f"{CONNECT} {name}", prints("deputy")), mode)


def test_e10_a_terminal_multiplexer_runs_nothing(station: Station):
    marker = station.outside / "E10"
    with place_of(station, "/tmp") as folder:
        server = folder / "default"
        with running(station, "tmux", "-D", "-S", str(server)):
            wait_for(server)
            command = f"tmux -S {server} run-shell 'touch {marker}'"
            stopped(
                station,
                Attack(command, makes(marker), lambda: marker.unlink(missing_ok=True)),
            )


@pytest.mark.parametrize("mode", CONFINING)
def test_socket_pairs_work(station: Station, mode: str):
    program = """
import json, os, socket
a, b = socket.socketpair()
if os.fork() == 0:
    b.sendall(b"over")
    os._exit(0)
print(json.dumps(a.recv(4).decode()))
"""
    assert station.python(program, mode) == "over"


@on(*UNDER_BWRAP)
@pytest.mark.parametrize("folder", ["{workspace}", "/tmp"])
def test_sockets_of_its_own_work_under_bwrap(station: Station, folder: str):
    where = folder.format(workspace=station.workspace)
    program = f"""
import json, os, socket
path = {where!r} + "/own.sock"
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
listener.listen()
client = socket.socket(socket.AF_UNIX)
client.connect(path)
listener.accept()[0].sendall(b"over")
print(json.dumps(client.recv(4).decode()))
"""
    assert station.python(program) == "over"


@on(*UNDER_LANDLOCK)
def test_unix_sockets_are_refused_by_whichever_number(station: Station):
    """The kernel looks at 32 bits of the family; the filter must not look at more."""
    program = """
import ctypes, errno, json, platform
number = {"x86_64": 41, "aarch64": 198}[platform.machine()]
libc = ctypes.CDLL(None, use_errno=True)
def open_socket(family):
    made = libc.syscall(ctypes.c_long(number), ctypes.c_long(family),
                        ctypes.c_long(1), ctypes.c_long(0))
    return "made" if made >= 0 else errno.errorcode[ctypes.get_errno()]
print(json.dumps([open_socket((high << 32) + 1) for high in (0, 1, 0x7fffffff)]))
"""
    assert station.python(program, FULL_ACCESS) == ["made"] * 3
    refused = station.python(program)
    assert refused == ["EPERM", "EAFNOSUPPORT", "EAFNOSUPPORT"]


@on(*UNDER_LANDLOCK)
def test_a_granted_socket_needs_all_of_them_and_that_is_a_gap(station: Station):
    path = station.outside / "granted"
    with listening(str(path), owner=station.caller.uid):
        session = with_policies(
            station,
            one=f'mode = "workspace-write"\nsockets.grant = ["{path}"]\n',
            all='mode = "workspace-write"\nsockets.unix = true\n',
        )
        assert (
            "deputy" not in session.run(f"{CONNECT} {path}", policy="one").stdout.text
        )
        opened = session.run(f"{CONNECT} {path}", policy="all")
        assert "deputy" in opened.stdout.text
        assert opened.sandbox is not None
        assert opened.sandbox.enforcement == "partial"


class TestE04TheDaemonItself:
    """A command cannot have the daemon do what it may not."""

    ASK = """
import json, os, socket, sys
def paths():
    yield os.environ.get("BASHD_SOCKET", "")
    yield from sys.argv[1:]
    for line in open("/proc/net/unix"):
        yield line.rstrip("\\n").split(" ", 7)[-1]
answers = []
own = os.path.dirname(sys.argv[1])  # other daemons on the machine are left alone
for path in dict.fromkeys(p for p in paths() if p.startswith(own)):
    try:
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(10)
            s.connect(path)
            file = s.makefile("rwb")
            def ask(number, method, params):
                file.write(json.dumps({"jsonrpc": "2.0", "id": number,
                           "method": method, "params": params}).encode() + b"\\n")
                file.flush()
                return json.loads(file.readline())
            ask(0, "initialize", {"protocol": 1})
            answers.append(ask(1, "exec.run", {
                "command": "touch " + sys.argv[2], "mode": "danger-full-access",
                "session_id": os.environ.get("BASHD_SESSION_ID")}))
            if "result" in answers[-1]:
                break  # it worked; the other ways would have to time out
    except (OSError, ValueError) as error:
        answers.append(repr(error))
print(json.dumps(answers))
"""

    REACHED = 'mode = "workspace-write"\nnested = true\nsockets.unix = true\n'
    """Its socket is there; landlock needs them all open for that."""

    @pytest.mark.parametrize("mode", CONFINING)
    def test_no_way_to_it_is_found(self, station: Station, mode: str):
        marker = station.outside / "E04"
        arguments = f"{station.daemon.socket} {marker}"
        free = station.run(
            f"python3 -I - {arguments}", FULL_ACCESS, stdin=self.ASK.encode()
        )
        assert marker.exists(), f"without walls it must work: {free}"
        marker.unlink()
        station.run(f"python3 -I - {arguments}", mode, stdin=self.ASK.encode())
        assert not marker.exists()

    def test_where_it_is_reached_it_knows_who_asks(self, station: Station):
        marker = station.outside / "E04"
        session = with_policies(station, nested=self.REACHED)
        result = session.run(
            f"python3 -I - {station.daemon.socket} {marker}",
            policy="nested",
            stdin=self.ASK.encode(),
        )
        assert "wider than workspace-write" in result.stdout.text, result
        assert not marker.exists()
        assert "refused" in station.daemon.log

    def test_a_nested_tool_works_within_its_own_walls(self, station: Station):
        session = with_policies(station, nested=self.REACHED)
        python = station.daemon.install.python
        inner = (
            f"cd /; {python} -P -m bashd run --socket {station.daemon.socket}"
            " --session $BASHD_SESSION_ID"
        )
        result = session.run(f"{inner} -- 'echo inside > from-inside'", policy="nested")
        assert result.exit_code == 0, result
        assert (station.workspace / "from-inside").read_text() == "inside\n"
        narrower = session.run(
            f"{inner} --mode read-only -- 'echo x > refused'", policy="nested"
        )
        assert narrower.exit_code == 1
        assert not (station.workspace / "refused").exists()

    def test_its_state_is_closed(self, station: Station):
        places = f"{station.daemon.state_dir}/lock {station.daemon.state_dir}/sessions"
        listed = station.run(
            f"ls {places}; cat {station.daemon.state_dir}/lock", READ_ONLY
        )
        assert listed.exit_code != 0
        written = station.run(f"touch {station.daemon.state_dir}/planted")
        assert written.exit_code != 0
        assert not (station.daemon.state_dir / "planted").exists()
