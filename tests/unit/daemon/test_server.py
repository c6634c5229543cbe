"""Accepting: who is let in, how many, and that they all go again."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest
import trio
import trio.testing

from bashd.core.errors import LimitError
from bashd.daemon.listener import bind
from bashd.daemon.quota import Bounds, Holding, Quota, affordable_connections
from bashd.daemon.server import Server
from bashd.daemon.socket_folder import SocketPlace
from tests.support.served import INITIALIZE, SmallService, Wire, code_of


class Serving:
    """A server on a real socket."""

    def __init__(self, server: Server, path: Path, nursery: trio.Nursery) -> None:
        self.server = server
        self.path = path
        self.nursery = nursery

    def connect(self) -> Wire:
        """Connect; whether it is let in shows later."""
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(str(self.path))
        sock.settimeout(0)
        return Wire(sock)

    async def greet(self) -> Wire:
        """Connect and be let in."""
        wire = self.connect()
        await wire.send(INITIALIZE)
        assert "result" in await wire.receive()
        return wire

    async def wait_for(self, connections: int) -> None:
        """Wait until that many connections are open."""
        while self.server.connections != connections:
            await self.server.wait_changed()


@contextlib.asynccontextmanager
async def serving(
    tmp_path: Path, *, bounds: Bounds | None = None, allow_root: bool = True
) -> AsyncGenerator[Serving]:
    path = tmp_path / "run" / "b.sock"
    listener = bind(SocketPlace(str(path)))
    try:
        server = Server(
            listener.socket,
            SmallService(),
            bounds=bounds,
            allow_root=allow_root,
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.accept, nursery)
            yield Serving(server, path, nursery)
            nursery.cancel_scope.cancel()
    finally:
        listener.release()


def open_fds() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@contextlib.contextmanager
def no_more_descriptors() -> Generator[None]:
    """Let this process open nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Descriptors above the limit stay usable; only new ones are refused.
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.trio
async def test_who_connects_is_served_and_leaves_nothing(tmp_path: Path):
    async with serving(tmp_path) as at:
        wire = await at.greet()
        assert (await wire.ask(1, "daemon.status"))["version"] == "test"
        wire.close()
        await at.wait_for(0)
        before = open_fds()
        for _ in range(20):
            wire = await at.greet()
            wire.close()
        await at.wait_for(0)
        assert open_fds() == before


@pytest.mark.trio
async def test_connections_of_one_user_are_bounded(tmp_path: Path):
    async with serving(tmp_path, bounds=Bounds(connections_per_uid=2)) as at:
        first, second = await at.greet(), await at.greet()
        refused = at.connect()
        answer = await refused.receive()
        assert code_of(answer) == "LIMIT"
        assert "2 connections" in answer["error"]["message"]
        with pytest.raises(EOFError):
            await refused.receive()
        first.close()
        await at.wait_for(1)
        third = await at.greet()
        for wire in (second, third, refused):
            wire.close()


@pytest.mark.trio
async def test_many_silent_connections_cost_the_others_nothing(tmp_path: Path):
    bounds = Bounds(connections_per_uid=50)
    async with serving(tmp_path, bounds=bounds) as at:
        talker = await at.greet()
        silent = [at.connect() for _ in range(200)]
        assert (await talker.ask(1, "daemon.status"))["version"] == "test"
        assert at.server.connections == 50
        for wire in (*silent, talker):
            wire.close()


@pytest.mark.skipif(os.getuid() != 0, reason="needs a root daemon")
@pytest.mark.trio
async def test_root_is_turned_away_where_the_configuration_says_so(tmp_path: Path):
    async with serving(tmp_path, allow_root=False) as at:
        wire = at.connect()
        answer = await wire.receive()
        assert code_of(answer) == "NOT_ALLOWED"
        assert "allow_root" in answer["error"]["message"]
        wire.close()


@pytest.mark.trio
async def test_who_leaves_before_being_let_in_stops_nobody(tmp_path: Path):
    async with serving(tmp_path) as at:
        for _ in range(20):
            at.connect().close()
        wire = await at.greet()
        wire.close()


@pytest.mark.trio
async def test_accepting_goes_on_after_descriptors_ran_out(
    tmp_path: Path,
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
):
    del autojump_clock
    async with serving(tmp_path) as at:
        talker = await at.greet()
        waiting = at.connect()
        with no_more_descriptors():
            assert await talker.ask(1, "daemon.status")
            assert at.server.connections == 1
        assert "cannot accept a connection" in caplog.text
        await waiting.send(INITIALIZE)
        assert "result" in await waiting.receive()
        waiting.close()
        talker.close()


def test_a_user_at_the_limit_leaves_room_for_others():
    quota = Quota(Bounds(connections=3, connections_per_uid=2))
    held: list[Holding] = [quota.admit(1000), quota.admit(1000)]
    with pytest.raises(LimitError, match="uid 1000 has 2 connections"):
        quota.admit(1000)
    held.append(quota.admit(1001))
    with pytest.raises(LimitError, match="the daemon has 3 connections"):
        quota.admit(1002)
    held.append(quota.admit(0))
    for holding in held:
        quota.release(holding)
    assert quota.connections == 0


def test_who_holds_little_is_not_closed_for_what_others_of_the_user_hold():
    quota = Quota(Bounds(held_bytes_per_uid=1_000_000))
    greedy, modest, other = quota.admit(1000), quota.admit(1000), quota.admit(1001)
    greedy.hold(1_000_001)
    modest.hold(10_000)
    other.hold(1_000_000)
    with pytest.raises(LimitError, match="uid 1000"):
        greedy.check()
    modest.check()
    other.check()
    with pytest.raises(LimitError):
        modest.check_room(1)


def test_connections_leave_descriptors_for_everything_else():
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert affordable_connections(Bounds(connections=10**9)) <= soft // 4
    assert affordable_connections(Bounds(connections=5)) == 5
