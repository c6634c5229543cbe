"""Network ``none``: a loopback that is up and the session's own, and nothing else."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.stations import (
    ALL,
    CONFINING,
    FULL_ACCESS,
    UNDER_BWRAP,
    Combination,
    Station,
    on,
    sys_python,
)

NETWORK = Path(__file__).parent / "inside" / "network.py"
OFFLINE = "offline"
OpenStation = Callable[..., Station]


@dataclass
class Outside:
    """Listeners on the host's loopback, TCP and UDP, and on an abstract name."""

    port: int
    sockets: tuple[socket.socket, ...]

    def heard_nothing(self) -> bool:
        """Whether nobody connected to, or sent anything to, any of them."""
        return not select.select(self.sockets, [], [], 0)[0]


@contextmanager
def listening_outside() -> Generator[Outside, None, None]:
    """Listen until the end of the block."""
    with socket.create_server(("127.0.0.1", 0)) as stream:
        port: int = stream.getsockname()[1]
        with (
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagram,
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as abstract,
        ):
            datagram.bind(("127.0.0.1", port))
            abstract.bind(f"\0bashd-canary-{port}")
            abstract.listen()
            yield Outside(port, (stream, datagram, abstract))


def offline(station: Station) -> dict[str, str]:
    """Give the caller policies without a network; return an environment with them."""
    for mode in CONFINING:
        station.make(
            f"config/bashd/policies/{OFFLINE}-{mode}.toml",
            f'mode = "{mode}"\nnetwork = "none"\n',
        )
    return station.environ | {"XDG_CONFIG_HOME": str(station.folder / "config")}


def test_without_walls_everything_on_the_host_is_reached(station: Station):
    with listening_outside() as outside:
        seen = station.program(NETWORK, outside.port, mode=FULL_ACCESS)
    reached = {name for name, outcome in seen.items() if outcome == "done"}
    assert reached >= {
        *("own loopback", "host's loopback", "host's loopback, UDP"),
        "host's abstract socket",
    }


def test_host_is_the_network_that_modes_leave_alone(station: Station):
    for mode in CONFINING:
        with listening_outside() as outside:
            seen = station.program(NETWORK, outside.port, mode=mode)
            assert seen["host's loopback"] == "done"
            # A matter of scopes, or of the filter, not of the network.
            assert seen["host's abstract socket"] == "EPERM"
            assert len(select.select(outside.sockets, [], [], 0)[0]) == 2


@pytest.mark.parametrize("mode", CONFINING)
def test_without_a_network_only_the_own_loopback_is_there(station: Station, mode: str):
    session = station.open(environ=offline(station), policy=f"{OFFLINE}-{mode}")
    with listening_outside() as outside:
        result = session.run(
            f"{sys_python()} -I - {outside.port}", stdin=NETWORK.read_bytes()
        )
        assert outside.heard_nothing()
    assert result.exit_code == 0, result
    assert result.sandbox is not None
    assert str(result.sandbox.mode) == mode
    seen = station.parse(result)
    assert seen.pop("interfaces") == ["lo"]
    assert seen.pop("own loopback") == "done"
    assert seen.pop("host's loopback") == "ECONNREFUSED"
    # A datagram to a port that nobody has is accepted and goes nowhere.
    assert seen.pop("host's loopback, UDP") in ("done", "ECONNREFUSED")
    assert set(seen.values()) <= {"ENETUNREACH", "EPERM", "ECONNREFUSED"}, seen


@pytest.mark.parametrize("combination", ALL, ids="-".join)
def test_i24_a_server_is_reached_by_the_next_call_in_another_mode(
    open_station: OpenStation, combination: Combination
):
    station = open_station(combination)
    session = station.open(
        environ=offline(station), policy=f"{OFFLINE}-workspace-write"
    )
    task = session.start(f"{sys_python()} -m http.server 8124 --bind 127.0.0.1")
    fetch = (
        f"{sys_python()} -c 'import urllib.request as u;"
        ' print(u.urlopen("http://127.0.0.1:8124/", timeout=5).status)\''
    )
    wait = (
        f"for i in $(seq 100); do {fetch} 2>/dev/null && exit; sleep 0.1; done; exit 1"
    )
    try:
        for mode in CONFINING:
            result = session.run(wait, policy=f"{OFFLINE}-{mode}")
            assert result.stdout.text == "200\n", (mode, result)
        # Neither the host nor another session of the same caller is in there.
        other = station.open(environ=station.environ, mode="workspace-write")
        assert other.run(fetch).exit_code != 0
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", 8124), timeout=5).close()
    finally:
        session.kill(task.task_id)


@on(*UNDER_BWRAP)
def test_i25_names_are_resolved_whatever_resolv_conf_is_a_link_to(station: Station):
    assert station.text("getent hosts localhost").split()[-1] == "localhost"
    host = Path("/etc/resolv.conf").read_text()
    assert station.text("cat /etc/resolv.conf") == host
