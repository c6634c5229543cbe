"""Goal: get a byte out of a command whose policy gives it no network.

By every kind of socket there is, to the host's own loopback (where a canary listens) and
beyond. Landlock's rules know TCP ports only; what holds here is a network namespace, or
where none can be made, the filter.
"""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Generator

import pytest

from tests.adversarial.attack import with_policies
from tests.support.stations import CONFINING, FULL_ACCESS, Station

WAYS = """
import errno, json, os, socket, struct, subprocess, sys
port = int(sys.argv[1])
def say(family, kind, protocol, address):
    with socket.socket(family, kind, protocol) as s:
        s.settimeout(1)
        s.connect(address)
        s.send(b"leak")
def fast_open():
    with socket.socket() as s:
        s.settimeout(1)
        s.sendto(b"leak", 0x20000000, ("127.0.0.1", port))
def shell():
    subprocess.run(["bash", "-c", f"echo leak > /dev/tcp/127.0.0.1/{port}"], check=True,
                   stderr=subprocess.DEVNULL)
echo = struct.pack("!BBHHH", 8, 0, 0, 1, 1)
def icmp(kind, address):
    with socket.socket(socket.AF_INET, kind, 1) as s:
        s.settimeout(1)
        s.sendto(echo, (address, 0))
def packet():
    with socket.socket(17, socket.SOCK_RAW, 0x300) as s:
        s.bind((socket.if_nameindex()[-1][1], 0))
        s.send(b"leak" * 16)
INET, INET6 = socket.AF_INET, socket.AF_INET6
STREAM, DGRAM, RAW = socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW
ways = {
    "TCP": lambda: say(INET, STREAM, 0, ("127.0.0.1", port)),
    "UDP": lambda: say(INET, DGRAM, 0, ("127.0.0.1", port)),
    "TCP over IPv6": lambda: say(INET6, STREAM, 0, ("::1", port)),
    "UDP over IPv6": lambda: say(INET6, DGRAM, 0, ("::1", port)),
    "a mapped address": lambda: say(INET6, STREAM, 0, ("::ffff:127.0.0.1", port)),
    "MPTCP": lambda: say(INET, STREAM, 262, ("127.0.0.1", port)),
    "TCP fast open": fast_open,
    "the shell's own": shell,
    "SCTP": lambda: say(INET, STREAM, 132, ("127.0.0.1", port)),
    "a name server": lambda: say(INET, DGRAM, 0, ("192.0.2.53", 53)),
    "a cloud's metadata": lambda: say(INET, STREAM, 0, ("169.254.169.254", 80)),
    "the neighbours": lambda: say(INET6, DGRAM, 0, ("fe80::1", 9, 0, 2)),
    "a ping": lambda: icmp(DGRAM, "192.0.2.1"),
    "a raw ping": lambda: icmp(RAW, "192.0.2.1"),
    "a packet": packet,
    "a hypervisor": lambda: say(40, STREAM, 0, (2, port)),
}
seen = {}
for name, way in ways.items():
    try:
        way()
        seen[name] = "through"
    except OSError as error:
        seen[name] = errno.errorcode.get(error.errno, repr(error))
    except Exception as error:
        seen[name] = repr(error)
print(json.dumps(seen))
"""


@contextlib.contextmanager
def canary() -> Generator[tuple[int, list[socket.socket]]]:
    """Listen on the host's loopback with TCP and UDP, on both families."""
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        port: int = first.getsockname()[1]
        sockets = [first]
        udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        udp.bind(("127.0.0.1", port))
        sockets.append(udp)
        with contextlib.suppress(OSError):  # a machine without IPv6
            sockets.append(
                stack.enter_context(
                    socket.create_server(("::1", port), family=socket.AF_INET6)
                )
            )
            six = stack.enter_context(socket.socket(socket.AF_INET6, socket.SOCK_DGRAM))
            six.bind(("::1", port))
            sockets.append(six)
        yield port, sockets


@pytest.mark.parametrize("mode", CONFINING)
def test_nothing_leaves_by_any_kind_of_socket(station: Station, mode: str):
    command = "exec python3 -I - "
    with canary() as (port, sockets):
        free = station.parse(
            station.run(f"{command}{port}", FULL_ACCESS, stdin=WAYS.encode())
        )
        assert {n for n, said in free.items() if said == "through"} >= {
            *("TCP", "UDP", "the shell's own")
        }, free
        assert len(select.select(sockets, [], [], 5)[0]) >= 2
    session = with_policies(station, off=f'mode = "{mode}"\nnetwork = "none"\n')
    with canary() as (port, sockets):
        result = session.run(f"{command}{port}", policy="off", stdin=WAYS.encode())
        seen = station.parse(result)
        # UDP to a port of its own loopback is accepted and goes nowhere.
        inside = {"UDP", "UDP over IPv6"}
        through = {name for name, said in seen.items() if said == "through"}
        assert through <= inside, seen
        assert not select.select(sockets, [], [], 0.2)[0], "the host heard something"


def test_a_failure_for_want_of_a_network_is_said_in_one_line(station: Station):
    session = with_policies(station, off='mode = "workspace-write"\nnetwork = "none"\n')
    result = session.run(
        "curl -sS --max-time 5 http://192.0.2.1/ || getent hosts example.invalid",
        policy="off",
    )
    assert result.exit_code != 0
    assert result.sandbox is not None
    hints = [hint for hint in result.sandbox.hints if "network" in hint]
    assert len(hints) == 1, result
    assert "\n" not in hints[0]
