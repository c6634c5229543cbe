"""Goal: cost somebody else something by what is sent, or not read, on the socket.

The daemon is a real one. Beside each attacker sits a bystander with a connection of
its own; whatever the attacker does, the bystander's requests are answered while it
does it, the daemon's memory stays bounded, and nothing of the attack is left when the
attacker is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import daemon_factory
from tests.support.accounts import speaking_as

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.daemons import RunningDaemon
    from tests.support.stage import Install

INITIALIZE = b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocol":1}}\n'
STATUS = b'{"jsonrpc":"2.0","id":1,"method":"daemon.status"}\n'
MEGABYTE = 1 << 20
PATIENCE_S = 2.0
"""Longest a bystander may wait for an answer; it takes a fraction of a millisecond, and
the largest message there is takes a fifth of a second to refuse."""
CONNECTIONS = 40


@pytest.fixture(scope="module", params=["root", "user"])
def daemon(
    request: pytest.FixtureRequest, reachable_tmp: Path, install: Install
) -> Iterator[RunningDaemon]:
    """A daemon of root's, then a user's; each attack must leave it as it was."""
    name = "root_account" if request.param == "root" else "ordinary_user"
    settings: dict[str, dict[str, object]] = {
        "limits": {"connections": CONNECTIONS},
        "executor": {"grace_ms": 200},
    }
    with daemon_factory(reachable_tmp, install) as factory:
        yield factory(account=request.getfixturevalue(name), settings=settings)


class Peer:
    """A blocking connection."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(20)
        self.socket.connect(str(path))
        self._lines = self.socket.makefile("rb")

    def greet(self) -> Peer:
        self.send(INITIALIZE)
        assert "result" in self.receive()
        return self

    def send(self, data: bytes) -> None:
        """Send; a daemon that has had enough closes, and `receive` tells why."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.socket.sendall(data)

    def receive(self) -> dict[str, Any]:
        line = self._lines.readline()
        if not line:
            raise EOFError
        return json.loads(line)

    def receive_all(self) -> list[dict[str, Any]]:
        """Return what comes until the daemon closes."""
        received: list[dict[str, Any]] = []
        with contextlib.suppress(EOFError, ConnectionResetError):
            while True:
                received.append(self.receive())
        return received

    def status(self) -> dict[str, Any]:
        self.send(STATUS)
        return self.receive()["result"]

    def close(self) -> None:
        self._lines.close()
        self.socket.close()


def codes(answers: list[dict[str, Any]]) -> list[str]:
    return [answer["error"]["data"]["code"] for answer in answers if "error" in answer]


class Scene:
    """A daemon, a bystander, and the means to attack."""

    def __init__(self, daemon: RunningDaemon) -> None:
        self.daemon = daemon
        self.bystander = Peer(daemon.socket).greet()
        self._attackers: list[Peer] = []
        self._memory_before = self._memory_bytes()

    def attack(self) -> Peer:
        """Connect; nothing is said yet."""
        peer = Peer(self.daemon.socket)
        self._attackers.append(peer)
        return peer

    def check_bystander(self) -> None:
        """Have the bystander ask for something, and be answered soon."""
        started = time.monotonic()
        assert self.bystander.status()["pid"] == self.daemon.pid
        assert time.monotonic() - started < PATIENCE_S

    def check_memory(self, most_bytes: int) -> None:
        """Say that the daemon has not grown by more than *most_bytes*."""
        grown = self._memory_bytes() - self._memory_before
        assert grown < most_bytes, f"grown by {grown / MEGABYTE:.0f} MiB"

    def close(self) -> None:
        """Let the attackers go, and see that the daemon is as before."""
        for peer in self._attackers:
            peer.close()
        # A connection that ends is gone before the next one's requests are served,
        # unless a handler of it is ending; none here takes any time.
        deadline = time.monotonic() + 10
        while self._connections() > 1:
            assert time.monotonic() < deadline, "connections are left"
            self.check_bystander()
        self.bystander.close()

    def _connections(self) -> int:
        """Count the daemon's connected sockets, as the kernel lists them."""
        lines = Path("/proc/net/unix").read_text().splitlines()
        path = f" {self.daemon.socket}"
        # Column 5 is the state: 3 is connected, and 1 is the listener.
        return sum(
            1 for line in lines if line.endswith(path) and line.split()[5] == "03"
        )

    def _memory_bytes(self) -> int:
        status = Path(f"/proc/{self.daemon.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) * 1024


@pytest.fixture
def scene(daemon: RunningDaemon) -> Iterator[Scene]:
    with speaking_as(daemon.account):
        made = Scene(daemon)
        yield made
        made.close()


# Frames that are none


MALFORMED = {
    "nothing": b"\n",
    "no json": b"GET / HTTP/1.1\r\n",
    "binary": bytes(range(256)).replace(b"\n", b"") + b"\n",
    "length prefix": b"\x7f\xff\xff\xff{}\n",
    "negative length prefix": b"\xff\xff\xff\xff{}\n",
    "truncated": b'{"jsonrpc":"2.0","id":1,"meth\n',
    "invalid UTF-8": b'{"jsonrpc":"2.0","id":1,"method":"\xc3\x28"}\n',
    "overlong UTF-8": b'{"jsonrpc":"2.0","id":1,"method":"\xc0\xaf"}\n',
    "lone surrogate": b'{"jsonrpc":"2.0","id":1,"method":"\\ud800"}\n',
    "duplicate keys": b'{"jsonrpc":"2.0","id":1,"id":2,"method":"daemon.status"}\n',
    "NaN": b'{"jsonrpc":"2.0","id":NaN,"method":"daemon.status"}\n',
    "infinity": b'{"jsonrpc":"2.0","id":1e999,"method":"daemon.status"}\n',
    "a number of 5,000 digits": b'{"id":' + b"9" * 5000 + b"}\n",
    "deep": b"[" * 100_000 + b"]" * 100_000 + b"\n",
    "deep objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"\n",
    "a batch of 100,000": b"[" + b",".join([STATUS.strip()] * 100_000) + b"]\n",
    "a string": b'"exec.run"\n',
    "null": b"null\n",
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_frame_is_answered_and_the_connection_goes_on(
    scene: Scene, kind: str
):
    attacker = scene.attack().greet()
    attacker.send(MALFORMED[kind] + STATUS)
    scene.check_bystander()
    answer = attacker.receive()
    assert answer["id"] is None
    assert codes([answer]) == ["BAD_FRAME"]
    assert attacker.receive()["result"]["pid"] == scene.daemon.pid


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b'{"jsonrpc":"2.0","id":1,"method":"exec.fork"}', "UNKNOWN_METHOD"),
        (b'{"jsonrpc":"2.0","id":1,"method":"__init__"}', "UNKNOWN_METHOD"),
        (b'{"jsonrpc":"2.0","id":1,"method":["exec.run"]}', "INVALID_REQUEST"),
        (b'{"jsonrpc":"2.0","id":{},"method":"daemon.status"}', "INVALID_REQUEST"),
        (b'{"jsonrpc":2.0,"id":1,"method":"daemon.status"}', "INVALID_REQUEST"),
        (b'{"jsonrpc":"2.0","id":1,"method":"exec.run"}', "INVALID_PARAMS"),
        (
            b'{"jsonrpc":"2.0","id":1,"method":"exec.run","params":["true"]}',
            "INVALID_PARAMS",
        ),
        (
            b'{"jsonrpc":"2.0","id":1,"method":"exec.run","params":{"command":{}}}',
            "INVALID_PARAMS",
        ),
        (
            b'{"jsonrpc":"2.0","id":1,"method":"exec.run","params":'
            b'{"command":"true","cwd":"/","timeout_ms":-1}}',
            "INVALID_PARAMS",
        ),
        (
            b'{"jsonrpc":"2.0","id":1,"method":"task.kill","params":'
            b'{"task_id":"../../etc/passwd"}}',
            "UNKNOWN_TASK",
        ),
        (
            b'{"jsonrpc":"2.0","id":1,"method":"session.get","params":'
            b'{"session_id":"\\u0000"}}',
            "UNKNOWN_SESSION",
        ),
    ],
)
def test_a_wrong_request_has_its_own_code(scene: Scene, line: bytes, code: str):
    attacker = scene.attack().greet()
    attacker.send(line + b"\n")
    assert codes([attacker.receive()]) == [code]
    assert attacker.status()["pid"] == scene.daemon.pid


def test_endless_nonsense_ends_its_connection(scene: Scene):
    attacker = scene.attack().greet()
    attacker.send(b"\n" * 10 * MEGABYTE)
    scene.check_bystander()
    answers = attacker.receive_all()
    assert set(codes(answers)) == {"BAD_FRAME"}
    assert len(answers) < 100
    scene.check_memory(16 * MEGABYTE)


@pytest.mark.parametrize("seed", range(20))
def test_random_bytes_and_mutated_frames_never_hurt(scene: Scene, seed: int):
    chance = random.Random(seed)
    attacker = scene.attack()
    pieces: list[bytes] = []
    for _ in range(50):
        line = bytearray(chance.choice([INITIALIZE, STATUS, *MALFORMED.values()])[:300])
        for _ in range(chance.randrange(4)):
            line[chance.randrange(len(line))] = chance.randrange(256)
        pieces.append(bytes(line))
    data = b"".join(pieces)
    while data:
        size = chance.randrange(1, 400)
        attacker.send(data[:size])
        data = data[size:]
    attacker.socket.shutdown(socket.SHUT_WR)
    scene.check_bystander()
    attacker.receive_all()


# Size


def test_a_frame_of_a_gigabyte_is_refused_while_it_is_sent(scene: Scene):
    attacker = scene.attack().greet()
    attacker.socket.settimeout(0)
    chunk, sent = b"x" * MEGABYTE, 0
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        while sent < 1 << 30:
            try:
                sent += attacker.socket.send(chunk)
            except BlockingIOError:
                scene.check_bystander()
    attacker.socket.settimeout(20)
    assert codes(attacker.receive_all()) == ["BAD_FRAME"]
    # The limit, what was on its way, and nothing like the rest.
    assert sent < 32 * MEGABYTE
    scene.check_memory(64 * MEGABYTE)


@pytest.mark.parametrize(
    "body",
    [
        b"[" + b"0," * (7 * MEGABYTE),
        b"{" + b'"a":1,' * (2 * MEGABYTE),
        b"[[]," * MEGABYTE,
    ],
    ids=["numbers", "keys", "lists"],
)
def test_a_frame_of_millions_of_values_is_not_parsed(scene: Scene, body: bytes):
    attacker = scene.attack().greet()
    start = (
        b'{"jsonrpc":"2.0","id":1,"method":"exec.run","params":{"command":"x","env":'
    )
    for _ in range(3):
        attacker.send(start + body + b"\n")
        scene.check_bystander()
        assert codes([attacker.receive()]) == ["BAD_FRAME"]
    # Parsed, each of these would take hundreds of megabytes.
    scene.check_memory(100 * MEGABYTE)


def test_unfinished_frames_of_many_connections_are_bounded_together(scene: Scene):
    attackers = [scene.attack().greet() for _ in range(20)]
    half = b'{"jsonrpc":"2.0","id":1,"method":"exec.run","params":{"command":"'
    half += b"x" * (10 * MEGABYTE)
    for attacker in attackers:
        attacker.send(half)
        scene.check_bystander()
    scene.check_memory(120 * MEGABYTE)
    refused = [peer for peer in attackers if is_closed(peer)]
    assert len(refused) >= 10


def is_closed(peer: Peer) -> bool:
    """Whether the daemon has said goodbye; never waits."""
    peer.socket.settimeout(0.2)
    try:
        return "LIMIT" in codes(peer.receive_all())
    except TimeoutError:
        return False


def test_a_first_message_may_not_be_long(scene: Scene):
    attacker = scene.attack()
    attacker.send(b"x" * MEGABYTE)
    assert codes(attacker.receive_all()) == ["BAD_FRAME"]


# Time


def test_slow_senders_cost_nothing(scene: Scene):
    attackers = [scene.attack().greet() for _ in range(20)]
    for byte in STATUS[:-1]:
        for attacker in attackers:
            attacker.send(bytes([byte]))
        scene.check_bystander()
    attackers[0].send(b"\n")
    assert attackers[0].receive()["result"]["pid"] == scene.daemon.pid


def test_more_connections_than_allowed_are_told_so(scene: Scene):
    attackers = [scene.attack() for _ in range(CONNECTIONS + 50)]
    scene.check_bystander()
    refused = [peer for peer in attackers[CONNECTIONS:] if codes(peer.receive_all())]
    assert len(refused) == 50
    # Those who were let in are silent, and that is all they cost.
    scene.check_bystander()


def test_who_never_reads_holds_up_nobody(scene: Scene):
    attacker = scene.attack().greet()
    attacker.socket.settimeout(0)
    request = b'{"jsonrpc":"2.0","id":%d,"method":"session.get","params":'
    request += b'{"session_id":"%s"}}\n'
    # Every answer quotes nothing, but there are many; in the end none is read.
    with contextlib.suppress(BlockingIOError):
        for number in range(1_000_000):
            attacker.socket.sendall(request % (number, b"x" * 100))
            if number % 1000 == 0:
                scene.check_bystander()
    scene.check_bystander()
    scene.check_memory(32 * MEGABYTE)


def test_an_id_that_is_used_twice_does_not_settle_the_first_request(scene: Scene):
    attacker = scene.attack().greet()
    run = b'{"jsonrpc":"2.0","id":7,"method":"exec.run","params":'
    run += b'{"command":"read -t 0.3 < /dev/zero; echo first","cwd":"%s"}}\n'
    workspace = os.fsencode(scene.daemon.folder)
    attacker.send(run % workspace + STATUS.replace(b'"id":1', b'"id":7'))
    answers = [attacker.receive(), attacker.receive()]
    assert [answer["id"] for answer in answers] == [None, 7]
    assert answers[1]["result"]["stdout"]["text"] == "first\n"


def test_leaving_in_the_middle_of_everything_leaves_nothing(scene: Scene):
    run = b'{"jsonrpc":"2.0","id":%d,"method":"exec.run","params":'
    run += b'{"command":"sleep 60","cwd":"%s","stream":true}}\n'
    workspace = os.fsencode(scene.daemon.folder)
    for number in range(5):
        attacker = scene.attack().greet()
        attacker.send(run % (number, workspace) + b'{"half')
        attacker.close()
        scene.check_bystander()


# Descriptors


def test_descriptors_that_are_sent_along_are_refused(scene: Scene):
    attacker = scene.attack().greet()
    socket.send_fds(attacker.socket, [STATUS], [0, 1, 2])
    assert codes(attacker.receive_all()) == ["BAD_FRAME"]
    scene.check_bystander()
