"""`connect(host=…)` and `bashd mcp --host`, through a real sshd."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters

from bashd.client import connect, connect_sync
from bashd.core.errors import ConnectError
from bashd.core.model import ExecRequest
from tests.mcp.serving import HANDSHAKE, texts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.remote.sshd import SshServer

pytestmark = pytest.mark.slow


@pytest.fixture
def near(server: SshServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[SshServer]:
    """This process is the near side: its ssh is the configured one."""
    monkeypatch.setenv("PATH", server.env()["PATH"])
    monkeypatch.setenv("NEAR_SIDE", "yes")
    key = server.folder / "user_key"
    owner = key.stat()
    # ssh insists that a private key is its reader's own.
    os.chown(key, os.getuid(), os.getgid())
    yield server
    os.chown(key, owner.st_uid, owner.st_gid)


def test_the_blocking_client_reaches_the_far_side(near: SshServer) -> None:
    with connect_sync(host=near.url) as client:
        result = client.run("pwd; echo ${FAR_SIDE-no} ${NEAR_SIDE-no}")
        assert result.stdout.text == f"{near.account.home}\nyes no\n"
        other = client.sessions.open(mode="workspace-write")
        assert other.cwd == str(near.account.home)
        client.sessions.close(other.session_id)


def test_an_environment_is_sent_when_it_is_given(near: SshServer) -> None:
    with connect_sync(host=near.url, environ={"MINE": "yes"}) as client:
        result = client.run("echo ${MINE-no} ${FAR_SIDE-no}")
        assert result.stdout.text == "yes no\n"


def test_a_lost_connection_says_so_and_the_session_goes_on(near: SshServer) -> None:
    with connect_sync(host=near.url) as client:
        session = client.session.session_id
        task = client.start("echo one; sleep 0.2; echo two")
        near_ssh = client._link.far._process.pid  # pyright: ignore[reportOptionalMemberAccess]
        os.kill(near_ssh, signal.SIGKILL)
        with pytest.raises(ConnectError, match="was ended by signal 9"):
            client.status()
    with connect_sync(host=near.url, session=session) as client:
        assert client.wait(task.task_id).exit_code == 0
        read = client.read_output(task.task_id)
        assert read is not None
        assert read.delta == "one\ntwo\n"


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_the_async_client_reaches_the_far_side(near: SshServer) -> None:
    async with connect(host=near.url) as client:
        spec = client.resolve(ExecRequest("echo $FAR_SIDE; cat", stdin=b"sent\n"))
        assert (await client.run(spec)).stdout.text == "yes\nsent\n"
        other = await client.sessions.open()
        assert other.cwd == str(near.account.home)


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_async_client_says_why_it_cannot(near: SshServer) -> None:
    with pytest.raises(ConnectError, match="Connection refused"):
        async with connect(host="ssh://127.0.0.1:1"):
            pass


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_an_mcp_session_survives_the_death_of_its_ssh(server: SshServer) -> None:
    argv = server.near_argv("mcp", "--host", server.url)
    parameters = StdioServerParameters(
        command=argv[0], args=argv[1:], env=server.env(), cwd=str(server.folder)
    )

    async with Client(parameters, mode=HANDSHAKE) as client:

        async def call(tool: str, **arguments: object) -> str:
            return texts(await client.call_tool(tool, arguments))[0]

        async def bash(command: str, **more: object) -> str:
            what = {"command": command, "description": "Do what the test says"}
            return await call("bash", **what, **more)

        session = await bash("printf $BASHD_SESSION_ID")
        started = await bash("echo one; sleep 1; echo two", run_in_background=True)
        task = started.split()[-1].strip(".")
        for word in started.replace(",", " ").replace("(", " ").split():
            if word.strip(".:;)\"'").startswith("bash-"):
                task = word.strip(".:;)\"'")
        os.kill(_ssh_below(server), signal.SIGKILL)
        assert (await bash("printf $BASHD_SESSION_ID")).startswith(session)
        seen = ""
        while "two" not in seen:
            seen += await call("bash_output", task_id=task)
            await anyio.sleep(0.02)
        assert seen.count("one") == 1


def _ssh_below(server: SshServer) -> int:
    for pid in server.far_processes(b"dial-stdio"):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if words[0].endswith(b"ssh") and b"-T" in words:
            return pid
    raise AssertionError
