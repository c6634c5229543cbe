"""A daemon's life in one process: ready, idle, reload, and the order of the end."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio
import trio.testing

from bashd.core.errors import ConfigError
from bashd.daemon.call import Call
from bashd.daemon.lifecycle import End, Life, live
from bashd.daemon.listener import Listener, bind
from bashd.daemon.notify import Notifier
from bashd.daemon.quota import Bounds
from bashd.daemon.server import Server
from bashd.daemon.socket_folder import SocketPlace
from bashd.protocol.messages import OwnerResult, StatusResult
from tests.support.served import INITIALIZE, SmallService, Wire, status

pytestmark = pytest.mark.trio


@dataclass
class LivingService(SmallService):
    """A service that can be busy and takes its time to stop."""

    busy: bool = False
    stopping: trio.Event = field(default_factory=trio.Event)
    may_stop: trio.Event = field(default_factory=trio.Event)

    async def serve(
        self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        task_status.started()
        await trio.sleep_forever()

    async def leave(self) -> None:
        await trio.lowlevel.checkpoint()

    async def stop(self) -> None:
        self.stopping.set()
        await self.may_stop.wait()


class Daemon:
    """One daemon that `live` runs."""

    def __init__(self, listener: Listener, service: LivingService) -> None:
        self.listener = listener
        self.service = service
        self.accepts = trio.Event()
        self.ended = trio.Event()
        self.end: End | None = None
        self.reloading = trio.Event()

    def connect(self) -> Wire:
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(self.listener.path)
        sock.settimeout(0)
        return Wire(sock)

    async def greet(self) -> Wire:
        wire = self.connect()
        await wire.send(INITIALIZE)
        assert "result" in await wire.receive()
        return wire

    @property
    def owns_the_path(self) -> bool:
        return Path(f"{self.listener.path}.owner").exists()

    @property
    def has_a_name(self) -> bool:
        return Path(self.listener.path).exists()


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    """Give the signals back: a daemon's life ends with its process, ours goes on."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
    for number, handler in before.items():
        signal.signal(number, handler)


@contextlib.asynccontextmanager
async def living(
    tmp_path: Path,
    *,
    service: LivingService | None = None,
    idle_exit_s: float | None = None,
    stop_s: float = 60,
    environ: dict[str, str] | None = None,
    reload: Callable[[], None] = lambda: None,
) -> AsyncGenerator[Daemon]:
    listener = bind(SocketPlace(str(tmp_path / "run" / "b.sock")))
    service = service or LivingService()
    daemon = Daemon(listener, service)
    bounds = Bounds(flush_s=1)

    async def check() -> None:
        daemon.reloading.set()
        reload()
        await trio.lowlevel.checkpoint()

    life = Life(
        listener=listener,
        service=service,
        server=Server(listener.socket, service, bounds=bounds),
        notifier=Notifier(environ or {}),
        announce=daemon.accepts.set,
        check=check,
        stop_s=stop_s,
        idle_exit_s=idle_exit_s,
    )
    try:
        async with trio.open_nursery() as nursery:

            async def run() -> None:
                daemon.end = await live(life)
                daemon.ended.set()

            nursery.start_soon(run)
            await daemon.accepts.wait()
            yield daemon
            service.may_stop.set()
            if not daemon.ended.is_set():
                os.kill(os.getpid(), signal.SIGTERM)
            await daemon.ended.wait()
    finally:
        life.notifier.close()
        listener.release()


async def test_term_ends_it_cleanly(tmp_path: Path):
    async with living(tmp_path) as daemon:
        daemon.service.may_stop.set()
        os.kill(os.getpid(), signal.SIGTERM)
        await daemon.ended.wait()
        assert daemon.end is End.CLEAN
        assert not daemon.has_a_name


async def test_while_tasks_end_nobody_new_comes_and_who_is_there_gets_results(
    tmp_path: Path,
):
    service = LivingService()

    async def run(_call: Call, _params: object) -> StatusResult:
        await service.stopping.wait()
        return await status(_call, _params)

    service.handlers["exec.run"] = run
    async with living(tmp_path, service=service) as daemon:
        wire = await daemon.greet()
        await wire.request(1, "exec.run", command="sleep 9")
        await trio.testing.wait_all_tasks_blocked()
        os.kill(os.getpid(), signal.SIGTERM)
        await service.stopping.wait()
        assert not daemon.has_a_name
        # The right to the path is kept until the tasks are gone.
        assert daemon.owns_the_path
        assert (await wire.receive())["id"] == 1
        assert not daemon.ended.is_set()
        service.may_stop.set()
        await daemon.ended.wait()
        with pytest.raises(EOFError):
            await wire.receive()
        wire.close()


async def test_an_answer_that_is_still_being_read_is_read_to_its_end(tmp_path: Path):
    service = LivingService()
    service.may_stop.set()

    async def run(_call: Call, _params: object) -> OwnerResult:
        await service.stopping.wait()
        return OwnerResult("x" * 3_000_000)

    service.handlers["exec.run"] = run
    async with living(tmp_path, service=service) as daemon:
        wire = await daemon.greet()
        await wire.request(1, "exec.run", command="sleep 9")
        await trio.testing.wait_all_tasks_blocked()
        os.kill(os.getpid(), signal.SIGTERM)
        answer = await wire.receive()
        assert len(answer["result"]["owner"]) == 3_000_000
        wire.close()


async def test_a_stop_that_hangs_is_bounded_and_not_called_clean(tmp_path: Path):
    async with living(tmp_path, stop_s=0.05) as daemon:
        os.kill(os.getpid(), signal.SIGTERM)
        await daemon.ended.wait()
        assert daemon.end is End.UNCLEAN


async def test_a_second_signal_does_not_wait(tmp_path: Path):
    async with living(tmp_path, stop_s=60) as daemon:
        os.kill(os.getpid(), signal.SIGINT)
        await daemon.service.stopping.wait()
        os.kill(os.getpid(), signal.SIGINT)
        await daemon.ended.wait()
        assert daemon.end is End.UNCLEAN


async def test_hup_begins_again_and_leaves_the_socket_and_the_tasks_alone(
    tmp_path: Path,
):
    async with living(tmp_path) as daemon:
        wire = await daemon.greet()
        os.kill(os.getpid(), signal.SIGHUP)
        await daemon.ended.wait()
        assert daemon.end is End.AGAIN
        assert not daemon.service.stopping.is_set()
        assert daemon.has_a_name
        assert daemon.owns_the_path
        with pytest.raises(EOFError):
            await wire.receive()
        wire.close()
        # Whoever connects now waits for the new program.
        daemon.connect().close()


async def test_signal_between_two_programs_is_the_new_ones(tmp_path: Path):
    async with living(tmp_path) as daemon:
        os.kill(os.getpid(), signal.SIGHUP)
        await daemon.ended.wait()
        # Blocked, so it is kept over the exec; the new program's receiver is set first.
        assert signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ())


async def test_open_requests_are_answered_before_the_program_goes(tmp_path: Path):
    service = LivingService()

    async def run(call: Call, _params: object) -> StatusResult:
        gone = trio.Event()
        call.abort.subscribe(gone.set)
        await gone.wait()
        return await status(call, _params)

    service.handlers["exec.run"] = run
    async with living(tmp_path, service=service) as daemon:
        wire = await daemon.greet()
        await wire.request(1, "exec.run", command="sleep 9")
        await trio.testing.wait_all_tasks_blocked()
        os.kill(os.getpid(), signal.SIGHUP)
        assert (await wire.receive())["id"] == 1
        await daemon.ended.wait()
        wire.close()


async def test_hup_with_a_bad_configuration_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    def refuse() -> None:
        raise ConfigError("bashd.toml: executor.timeout_ms: must be positive")

    async with living(tmp_path, reload=refuse) as daemon:
        os.kill(os.getpid(), signal.SIGHUP)
        await daemon.reloading.wait()
        assert "must be positive" in caplog.text
        wire = await daemon.greet()
        wire.close()
        assert not daemon.ended.is_set()


async def test_signals_at_the_very_end_do_not_kill_it(tmp_path: Path):
    async with living(tmp_path) as daemon:
        daemon.service.may_stop.set()
        os.kill(os.getpid(), signal.SIGTERM)
        while not daemon.ended.is_set():
            await trio.lowlevel.checkpoint()
            os.kill(os.getpid(), signal.SIGHUP)
        assert daemon.end is End.CLEAN


# Idle


async def test_an_idle_daemon_leaves(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
):
    del autojump_clock
    async with living(tmp_path, idle_exit_s=600) as daemon:
        daemon.service.may_stop.set()
        started = trio.current_time()
        await daemon.ended.wait()
        assert daemon.end is End.CLEAN
        assert trio.current_time() - started == pytest.approx(600, abs=1)


async def test_it_stays_while_somebody_is_connected(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
):
    del autojump_clock
    async with living(tmp_path, idle_exit_s=600) as daemon:
        daemon.service.may_stop.set()
        wire = await daemon.greet()
        await trio.sleep(10_000)
        assert not daemon.ended.is_set()
        wire.close()
        left = trio.current_time()
        await daemon.ended.wait()
        assert trio.current_time() - left == pytest.approx(600, abs=1)


async def test_it_stays_while_a_task_runs_without_clients(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
):
    del autojump_clock
    async with living(tmp_path, idle_exit_s=600) as daemon:
        daemon.service.may_stop.set()
        daemon.service.busy = True
        await trio.sleep(10_000)
        assert not daemon.ended.is_set()
        daemon.service.busy = False
        settled = trio.current_time()
        await daemon.ended.wait()
        assert 600 <= trio.current_time() - settled <= 610


async def test_who_connects_in_the_last_moment_is_served(tmp_path: Path):
    async with living(tmp_path, idle_exit_s=0.05) as daemon:
        wire = daemon.connect()
        # The loop stands still, so that the time is up and the client in the backlog
        # when it looks again.
        time.sleep(0.1)  # noqa: ASYNC251
        await wire.send(INITIALIZE)
        assert "result" in await wire.receive()
        assert daemon.has_a_name
        wire.close()
        daemon.service.may_stop.set()
        await daemon.ended.wait()
        assert not daemon.has_a_name


# The service manager


async def test_the_manager_hears_of_every_change(tmp_path: Path):
    address = str(tmp_path / "notify")
    environ = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "60000"}
    with trio.socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        await manager.bind(address)

        async def hear(wanted: bytes) -> None:
            with trio.fail_after(5):
                while not (await manager.recv(4096)).startswith(wanted):
                    pass

        def refuse() -> None:
            raise ConfigError("bashd.toml: no")

        async with living(tmp_path, environ=environ, reload=refuse) as daemon:
            daemon.service.may_stop.set()
            await hear(b"READY=1\nSTATUS=listening on ")
            for _ in range(3):
                await hear(b"WATCHDOG=1")
            os.kill(os.getpid(), signal.SIGHUP)
            await hear(b"RELOADING=1\nMONOTONIC_USEC=")
            await hear(b"READY=1")
            os.kill(os.getpid(), signal.SIGTERM)
            await hear(b"STOPPING=1")
            await daemon.ended.wait()
