"""Servers, names, remotes and engines: what of the network works, and what is said of it."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import socket
import threading
from collections.abc import Generator, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer

import pytest

from bashd.client import SyncClient
from bashd.core.model import RunResult
from tests.adversarial.attack import with_policies
from tests.conftest import DaemonFactory
from tests.support.accounts import Account
from tests.support.stations import (
    CONFINING,
    FULL_ACCESS,
    ROOT_BWRAP,
    SERVED_BWRAP,
    SERVED_LANDLOCK,
    USER_BWRAP,
    USER_LANDLOCK,
    WORKSPACE_WRITE,
    Station,
    on,
    sys_python,
)

FOUR = on(ROOT_BWRAP, USER_BWRAP, USER_LANDLOCK, SERVED_LANDLOCK)
"""Root and an ordinary user on both runners."""
OFFLINE = 'mode = "workspace-write"\nnetwork = "none"\n'
BLOCKED = 'network blocked by sandbox: its policy says network = "none"'


def offline(station: Station) -> SyncClient:
    return with_policies(station, offline=OFFLINE)


def hints(result: RunResult) -> tuple[str, ...]:
    assert result.sandbox is not None
    return result.sandbox.hints


# -- servers ------------------------------------------------------------------------------

SERVE = f"{sys_python()} -m http.server --bind 127.0.0.1"
FETCH = "curl -sf --retry 20 --retry-connrefused --retry-delay 1 -o /dev/null"


@FOUR
@pytest.mark.parametrize("policy", ["offline", None])
def test_i23_a_server_of_the_commands_own_is_reached_over_loopback(
    station: Station, policy: str | None
):
    session = offline(station) if policy else station.client
    port = 8123 if policy else free_port()
    result = session.run(
        f"{SERVE} {port} >/dev/null 2>&1 & {FETCH} 127.0.0.1:{port} && echo ok; kill %1",
        policy=policy,
        mode=None if policy else WORKSPACE_WRITE,
    )
    assert result.stdout.text == "ok\n", result
    assert result.sandbox is not None
    assert not result.sandbox.denied


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


@FOUR
def test_i23_a_port_can_be_bound_by_asyncio_and_its_client_does_not_hang(
    station: Station,
):
    program = """
import asyncio
async def main():
    async def greet(reader, writer):
        writer.write(b"hello")
        await writer.drain()
        writer.close()
    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    print((await reader.read()).decode())
    writer.close()
    left, right = __import__("socket").socketpair()
    await asyncio.to_thread(left.send, b"x")
asyncio.run(main())
"""
    for policy in ("offline", None):
        session = offline(station) if policy else station.client
        result = session.run(
            f"{sys_python()} -",
            policy=policy,
            mode=None if policy else WORKSPACE_WRITE,
            stdin=program.encode(),
            timeout_ms=20_000,
        )
        assert result.stdout.text == "hello\n", result


@FOUR
def test_i24_a_child_left_behind_serves_the_next_call_too(station: Station):
    session = offline(station)
    started = session.run(f"{SERVE} 8125 >/dev/null 2>&1 & echo $!", policy="offline")
    assert started.exit_code == 0, started
    assert session.run(f"{FETCH} 127.0.0.1:8125", policy="offline").exit_code == 0
    # It ends with its session at the latest.
    marks = station.processes("http.server --bind 127.0.0.1 8125")
    assert len(marks) == 1
    session.sessions.close(session.session.session_id)
    assert not station.processes("http.server --bind 127.0.0.1 8125")


# -- names --------------------------------------------------------------------------------


STUB = "/run/systemd/resolve/stub-resolv.conf"
FORMS = {
    "a file": "echo $LINE > /etc/resolv.conf",
    "a link": f"echo $LINE > {STUB}; ln -s {STUB} /etc/resolv.conf",
    "a relative link": f"echo $LINE > {STUB}; ln -s ..{STUB} /etc/resolv.conf",
    "another service's": "mkdir /run/NetworkManager;"
    " echo $LINE > /run/NetworkManager/resolv.conf;"
    " ln -s /run/NetworkManager/resolv.conf /etc/resolv.conf",
    "a mount": "echo $LINE > /run/systemd/own; touch /etc/resolv.conf;"
    " mount --bind /run/systemd/own /etc/resolv.conf",
}
"""How hosts say which name servers to ask. Made in /etc and /run of the daemon alone."""
APART = """
set -e
mount -t tmpfs none /run
mkdir -p /run/systemd/resolve /run/etc /run/work
mount -t overlay none -o lowerdir=/etc,upperdir=/run/etc,workdir=/run/work /etc
rm -f /etc/resolv.conf
LINE='nameserver 192.0.2.53'
{form}
exec "$@"
"""


@pytest.mark.parametrize(
    # Behind Landlock alone everything has its place of the host's.
    ("runner", "form"),
    [*(("bwrap", form) for form in FORMS), ("landlock", "a link")],
)
def test_i25_name_servers_are_known_whatever_names_them(
    make_daemon: DaemonFactory,
    root_account: Account,
    ordinary_user: Account,
    runner: str,
    form: str,
):
    script = APART.replace("{form}", FORMS[form])
    apart = ("unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh")
    daemon = make_daemon(
        account=root_account, caller=ordinary_user, runner=runner, wrap=apart
    )
    workspace = daemon.make_workspace()
    for mode in CONFINING:
        result = daemon.run(
            "cat /etc/resolv.conf; getent ahostsv4 localhost | head -1",
            cwd=workspace,
            mode=mode,
        )
        servers, name = result["stdout"]["text"].splitlines()
        assert servers == "nameserver 192.0.2.53", result
        assert name.split()[0] == "127.0.0.1"


# -- remotes ------------------------------------------------------------------------------

WANTING = {
    "git": "git ls-remote https://example.com/x.git",
    "git over ssh": "git ls-remote ssh://git@example.com/x.git",
    "curl": "curl -sS https://example.com/",
    "urllib": f"{sys_python()} -c \"import urllib.request as u; u.urlopen('https://example.com')\"",
    "an address": f'{sys_python()} -c "import socket;'
    " socket.create_connection(('192.0.2.1', 443), 5)\"",
}


@FOUR
def test_i26_a_failure_for_want_of_network_is_called_so(station: Station):
    session = offline(station)
    for what, command in WANTING.items():
        result = session.run(command, policy="offline", timeout_ms=40_000)
        assert result.exit_code not in (0, None), (what, result)
        assert BLOCKED in hints(result), (what, result)
        assert result.sandbox is not None
        assert not result.sandbox.denied, (what, "no file was refused")


@FOUR
def test_i26_other_failures_are_not_called_so(station: Station):
    session = offline(station)
    for command in ("false", "cat /no/such/file", "git -C / log", "curl -sS x://y"):
        result = session.run(command, policy="offline")
        assert result.exit_code != 0
        assert BLOCKED not in hints(result), (command, result)
    # Nor where there is a network, whatever the program says.
    result = station.run("echo 'Could not resolve host: example.com' >&2; exit 6")
    assert BLOCKED not in hints(result)


# -- container engines --------------------------------------------------------------------


class Engine(BaseHTTPRequestHandler):
    """Answers what a docker client asks first."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        """Answer a ping."""
        self._answer(b"")

    def do_GET(self) -> None:
        """Answer a ping, or say which version this is."""
        about = {"Version": "27.0", "ApiVersion": "1.46", "Os": "linux", "Arch": "x"}
        self._answer(json.dumps(about).encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing; the argument's name is the base class's."""

    def address_string(self) -> str:
        """Name the client, which has no address here."""
        return "client"

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Api-Version", "1.46")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextlib.contextmanager
def engine_at(path: Path) -> Generator[None, None, None]:
    """Have something that speaks like a container engine at *path*."""
    with ThreadingUnixStreamServer(str(path), Engine) as server:
        path.chmod(0o666)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
            path.unlink()


@pytest.fixture
def engine() -> Iterator[Path]:
    """The socket of an engine where such services have theirs."""
    if os.geteuid() != 0:
        pytest.skip("needs root to make a socket in /run")
    path = Path(f"/run/bashd-test-{secrets.token_hex(4)}.sock")
    with engine_at(path):
        yield path


CLIENTS = ["curl -sS --max-time 10 --unix-socket {socket} http://engine/version"]
"""The HTTP client that every machine of these tests has, and docker's own if there."""
if shutil.which("docker"):
    CLIENTS.append("DOCKER_HOST=unix://{socket} docker version")


@FOUR
@pytest.mark.parametrize("form", CLIENTS, ids=lambda form: form.split()[-2])
def test_i28_a_container_engine_is_refused_and_not_called_down(
    station: Station, engine: Path, form: str
):
    command = form.format(socket=engine)
    free = station.run(command, FULL_ACCESS)
    assert free.exit_code == 0, free
    assert "27.0" in free.stdout.text, "without walls it must answer"

    result = station.run(command)
    assert result.exit_code not in (0, None)
    assert "27.0" not in result.stdout.text
    assert result.sandbox is not None
    assert result.sandbox.denied, result
    assert (str(engine), "connect") in {
        (denial.path, denial.operation) for denial in result.sandbox.denials
    }
    said = "\n".join(hints(result))
    assert f"the socket {engine} is walled off by policy" in said
    assert "sockets.grant" in said, "what would open it is named"


@on(ROOT_BWRAP, SERVED_BWRAP)
def test_i28_a_policy_can_open_an_engine(station: Station, engine: Path):
    session = with_policies(
        station,
        engine=f'mode = "workspace-write"\nsockets.grant = ["{engine}"]\n',
    )
    for form in CLIENTS:
        result = session.run(form.format(socket=engine), policy="engine")
        assert result.exit_code == 0, result
        assert "27.0" in result.stdout.text
