"""Opening an async client: a connection, a session, and the tasks that serve them.

Leaving the block of `connect` leaves the session and its background tasks alone: they
end when the session is closed, or some time after it was last used.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

import anyio
from anyio.abc import SocketAttribute, UNIXSocketStream

from bashd.client.approvals import AsyncApprovals
from bashd.client.client import Client
from bashd.client.connection import Connection
from bashd.client.live import tell
from bashd.client.locate import check_server
from bashd.client.reach import chosen_host, reach_daemon
from bashd.client.remote import FarDaemon, dial_host
from bashd.client.sessions import AsyncSessions
from bashd.client.settings import Settings, open_or_attach
from bashd.core.errors import ConnectError
from bashd.protocol.codec import from_wire
from bashd.protocol.messages import TaskDone

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from bashd.core.executor import TaskListener
    from bashd.core.model import Mode


@contextlib.asynccontextmanager
async def connect(
    socket: str | None = None,
    *,
    host: str | None = None,
    cwd: str | None = None,
    session: str | None = None,
    autostart: bool = True,
    mode: Mode | str | None = None,
    policy: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> AsyncGenerator[Client]:
    """Connect to a daemon and open a session.

    Args:
        socket: Path of the daemon's socket; None finds one, as the command line does.
        host: ``ssh://[user@]host[:port]`` of the machine whose daemon to talk to, by
            the user's own ssh; None takes ``$BASHD_HOST`` or this machine. Paths and
            environment are that machine's then.
        cwd: Root and default workdir of the new session; the current directory.
        session: Id of a session to come back to, instead of opening one.
        autostart: Start the user's own daemon when none is running.
        mode: Mode of the new session; None takes the policy's or the daemon's.
        policy: Policy of the new session, by name.
        environ: Environment of the session's commands; credentials in it stay here.
            With a host it is sent only when it is given.

    Raises:
        ConnectError: No daemon can be reached.
        UnknownSessionError: There is no such session.
        InvalidParamsError: An argument is wrong.
    """
    host = chosen_host(host, socket, environ)
    if host is not None and environ is os.environ:
        environ = {}
    opening = open_or_attach(
        cwd=cwd,
        session=session,
        mode=mode,
        policy=policy,
        environ=environ,
        far=host is not None,
    )
    stream, far = await _reach(host, socket, autostart=autostart, environ=environ)
    listeners: list[TaskListener] = []
    failure: Exception | None = None

    def notice(method: str, params: dict[str, Any]) -> None:
        if method == "task.done":
            task = from_wire(TaskDone, params).task
            for listener in listeners.copy():
                tell(listener, task)
        else:
            approvals.notice(method, params)

    connection = Connection(stream, notice, far=far)
    approvals = AsyncApprovals(connection)

    async def serve() -> None:
        await connection.run()
        approvals.end()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve)
        try:
            hello = await connection.greet("python")
            info = await connection.ask(opening)
            yield Client(
                connection,
                Settings(hello, info),
                listeners,
                AsyncSessions(connection, environ, far=far is not None),
                approvals=approvals,
            )
        except Exception as error:  # noqa: BLE001 - raised again below, as it was
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        # Not from inside the task group, which would wrap it in an ExceptionGroup.
        raise failure


async def _reach(
    host: str | None, named: str | None, *, autostart: bool, environ: Mapping[str, str]
) -> tuple[UNIXSocketStream, FarDaemon | None]:
    if host is None:
        return await _open_stream(named, autostart=autostart, environ=environ), None
    far = dial_host(host, named=named, autostart=autostart)
    return await UNIXSocketStream.from_socket(far.connection), far


async def _open_stream(
    named: str | None, *, autostart: bool, environ: Mapping[str, str]
) -> UNIXSocketStream:
    def reach() -> str:
        with reach_daemon(named, autostart=autostart, environ=environ) as connection:
            return connection.getpeername()

    # In a thread: looking round and starting a daemon block.
    path = await anyio.to_thread.run_sync(reach)
    try:
        stream = await anyio.connect_unix(path)
    except OSError as error:
        raise ConnectError(f"no daemon answers on {path}: {error}") from None
    raw = stream.extra(SocketAttribute.raw_socket)  # noqa: S610 - not Django's extra
    try:
        check_server(raw, path)
    except BaseException:
        await stream.aclose()
        raise
    return stream
