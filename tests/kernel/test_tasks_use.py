"""What ``ps`` says of running tasks: memory, CPU time and ports of the whole tree."""

from __future__ import annotations

import json
import os
import secrets
import socket
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bashd.daemon.ports import listening_ports, parse_table, ports_of, sockets_of
from tests.support.stations import ALL, WORKSPACE_WRITE, Station, sys_python
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from bashd.core.model import TaskInfo
    from tests.support.daemons import RunningDaemon

MEMORY_BYTES = 40 * 1024 * 1024
SERVER = (
    "import socket, time\n"
    "listener = socket.create_server(('127.0.0.1', 0))\n"
    "print(listener.getsockname()[1], flush=True)\n"
    "time.sleep(600)\n"
)


until = partial(eventually, within_s=15)


def serve(station: Station, **options: Any) -> tuple[str, int]:
    """Start a task whose grandchild listens; return its id and the port."""
    command = f'bash -c "{sys_python()} -I -c \\"$CODE\\"; true"; true'
    task = station.client.start(
        command, mode=WORKSPACE_WRITE, env={"CODE": SERVER}, **options
    )
    read: list[str] = []

    def port() -> str:
        found = station.client.read_output(task.task_id)
        assert found is not None
        read.append(found.delta)
        return "".join(read).strip()

    return task.task_id, int(until(port, "the server's port"))


def info(station: Station, task_id: str) -> TaskInfo:
    found = station.client.get(task_id)
    assert found is not None
    return found


def test_memory_of_the_whole_tree_is_listed(station: Station):
    eat = f"x = b'x' * {MEMORY_BYTES}; import time; time.sleep(600)"
    task = station.client.start(
        f'bash -c "{sys_python()} -I -c \\"$CODE\\"; true"; true', env={"CODE": eat}
    )
    until(lambda: info(station, task.task_id).rss_bytes > MEMORY_BYTES, "the memory")
    station.client.kill(task.task_id)
    settled = station.client.wait(task.task_id)
    assert settled.rss_bytes == 0
    assert settled.max_rss_bytes > MEMORY_BYTES


def test_cpu_time_grows_while_a_task_works(station: Station):
    task = station.client.start("while :; do :; done")
    first = until(lambda: info(station, task.task_id).cpu_ms, "some CPU time")
    until(lambda: info(station, task.task_id).cpu_ms > first, "more CPU time")
    station.client.kill(task.task_id)
    assert station.client.wait(task.task_id).cpu_ms >= first


def test_ports_are_those_of_the_task_and_no_others(station: Station):
    first_id, first_port = serve(station)
    second_id, second_port = serve(station)
    assert info(station, first_id).ports == (first_port,)
    assert info(station, second_id).ports == (second_port,)
    listed = json.loads(station.daemon.cli("ps", "--json", env=station.environ).stdout)
    ports = {task["task_id"]: task["ports"] for task in listed["tasks"]}
    assert ports[first_id] == [first_port]
    station.client.kill(first_id)
    assert station.client.wait(first_id).ports == ()


@pytest.mark.parametrize("combination", ALL, ids="-".join)
def test_port_in_the_sessions_own_network_is_listed(
    open_station: Callable[..., Station],
    combination: tuple[str, str],
    policy_folder: Callable[..., dict[str, str]],
):
    environ = policy_folder(quiet='mode = "workspace-write"\nnetwork = "none"\n')
    station = open_station(combination, policy="quiet", environ=environ)
    task_id, port = serve(station)
    assert info(station, task_id).ports == (port,)
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0, "it is on the host's network"


def test_kernel_and_table_agree():
    with socket.create_server(("127.0.0.1", 0)) as four:
        table = parse_table(Path("/proc/self/net/tcp").read_text())
        port = four.getsockname()[1]
        assert port in table.values()
        assert port in ports_of([os.getpid()])
        assert sockets_of(os.getpid()) & table.keys()


def test_what_is_gone_holds_nothing():
    assert sockets_of(2**22) == set()
    assert listening_ports([{2**22}, set()]) == [(), ()]
    assert parse_table("header only\n") == {}


def test_adopted_task_is_listed_with_what_it_uses(every_daemon: RunningDaemon):
    daemon = every_daemon
    workspace = daemon.make_workspace()
    name = secrets.token_hex(4)
    started = daemon.cli(
        *("run", "--background", "--cwd", str(workspace), "--"),
        f'{sys_python()} -I -c \'x = b"{name}" * 5000000; import time;'
        " time.sleep(600)'",
    )
    task_id = started.stdout.strip()

    def listed() -> dict[str, Any]:
        (task,) = json.loads(daemon.cli("ps", "--json").stdout)["tasks"]
        return task

    until(lambda: listed()["rss_bytes"] > MEMORY_BYTES, "the memory before")
    daemon.kill()
    daemon.start_again()
    assert listed()["task_id"] == task_id
    assert until(lambda: listed()["rss_bytes"], "memory after") > MEMORY_BYTES
    assert listed()["cpu_ms"] > 0
