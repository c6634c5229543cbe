"""The blocking client: plain sockets, typed results, for scripts and programs.

`connect_sync` opens a session and gives the whole executor seam as ordinary methods. A
client belongs to one thread. Closing it leaves its session and background tasks alone:
they end when the session is closed, or some time after it was last used.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from typing import TYPE_CHECKING, Any, TypeVar

import bashd.client.calls as calls  # noqa: PLR0402 - `from` would import ourselves
from bashd.client.approvals import Approvals
from bashd.client.link import Link
from bashd.client.live import decode_output, tell
from bashd.client.reach import chosen_host
from bashd.client.sessions import Sessions
from bashd.client.settings import Settings, open_or_attach
from bashd.protocol.codec import from_wire
from bashd.protocol.messages import InitializeResult, TaskDone, TaskLogsParams

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from bashd.client.calls import Call
    from bashd.core.executor import OutputSink, TaskListener
    from bashd.core.model import (
        ExecRequest,
        ExecSpec,
        Mode,
        RunResult,
        TaskInfo,
        TaskRead,
    )
    from bashd.protocol.messages import SessionInfo, StatusResult, TaskLogsResult

T = TypeVar("T")


@contextlib.contextmanager
def connect_sync(
    socket: str | None = None,
    *,
    host: str | None = None,
    cwd: str | None = None,
    session: str | None = None,
    autostart: bool = True,
    mode: Mode | str | None = None,
    policy: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Generator[SyncClient]:
    """Connect to a daemon and open a session.

    Args:
        socket: Path of the daemon's socket; None finds one, as the command line does.
        host: ``ssh://[user@]host[:port]`` of the machine whose daemon to talk to; see
            `bashd.client.connect`.
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
    # Empty rather than None: what the environment says has been looked at.
    link = Link.reach(socket, host=host or "", autostart=autostart, environ=environ)
    try:
        info = opening.read(link.call(opening.method, opening.params))
        hello = from_wire(InitializeResult, link.hello)
        yield SyncClient(link, Settings(hello, info), environ)
    finally:
        link.close()


class SyncClient:
    """The executor seam over a socket, blocking. See `connect_sync`."""

    def __init__(
        self, link: Link, settings: Settings, environ: Mapping[str, str]
    ) -> None:
        self._link = link
        self._settings = settings
        self._sinks: dict[int, OutputSink] = {}
        self._listeners: list[TaskListener] = []
        self._subscribed = False
        self.sessions = Sessions(self._ask, environ, far=link.far is not None)
        self.approvals = Approvals(self._ask)
        link.on_notification = self._notice

    @property
    def session(self) -> SessionInfo:
        """This client's session, as it was when it was opened."""
        return self._settings.session

    @property
    def sandbox_mode(self) -> Mode | None:
        """Mode of a call that names none; None when this daemon never confines."""
        return self._settings.sandbox_mode

    def resolve(self, request: ExecRequest) -> ExecSpec:
        """Apply defaults and caps.

        Raises:
            InvalidParamsError: A number is out of range or the command holds a NUL.
        """
        return self._settings.resolve(request)

    def run(
        self,
        command: str | ExecSpec,
        /,
        *,
        mode: Mode | str | None = None,
        policy: str | None = None,
        workdir: str | None = None,
        timeout_ms: float | None = None,
        env: Mapping[str, str | None] | None = None,
        stdin: bytes | None = None,
        on_output: OutputSink | None = None,
    ) -> RunResult:
        """Run a command in the foreground until it has settled.

        A non-zero exit, a timeout and a signal are results, not errors. An exception
        that interrupts the wait, such as `KeyboardInterrupt`, aborts the command.

        Args:
            command: For ``bash -c``; or a spec, which takes no options beside it.
            mode: How far this one command may reach; None takes the session's.
            policy: Policy of this one command.
            workdir: Where it runs, relative to the session's cwd.
            timeout_ms: Milliseconds; the daemon's default and cap apply.
            env: Explicit variables, never scrubbed; None removes one.
            stdin: What the command reads; None is ``/dev/null``.
            on_output: Receives live output; what it raises aborts the command.

        Raises:
            StartError: The command never ran.
            SandboxUnavailableError: Nothing can confine it.
            RunnerFailedError: The cell broke.
            InvalidParamsError: An argument is wrong.
        """
        options = {
            "sandbox_mode": mode,
            "policy": policy,
            "workdir": workdir,
            "timeout_ms": timeout_ms,
            "env": None if env is None else dict(env),
            "stdin": stdin,
        }
        spec = self._settings.as_spec(command, options)
        call = calls.run(spec, self.session.session_id, stream=on_output is not None)
        request_id = self._link.send(call.method, call.params)
        if on_output is not None:
            self._sinks[request_id] = on_output
        try:
            return call.read(self._link.answer(request_id))
        except BaseException:
            # Harmless when the command has ended; its answer will be dropped.
            self._link.send("exec.cancel", {"request_id": request_id})
            raise
        finally:
            self._sinks.pop(request_id, None)

    def start(
        self,
        command: str | ExecSpec,
        /,
        *,
        mode: Mode | str | None = None,
        policy: str | None = None,
        workdir: str | None = None,
        env: Mapping[str, str | None] | None = None,
        stdin: bytes | None = None,
        deadline_ms: float | None = None,
    ) -> TaskInfo:
        """Start a command in the background and return at once.

        Args:
            command: For ``bash -c``; or a spec, which takes no options beside it.
            mode: How far this one command may reach; None takes the session's.
            policy: Policy of this one command.
            workdir: Where it runs, relative to the session's cwd.
            env: Explicit variables, never scrubbed; None removes one.
            stdin: What the command reads; None is ``/dev/null``.
            deadline_ms: Milliseconds after which it is ended; None means never.

        Raises:
            SandboxUnavailableError: Nothing can confine it; no id is allocated.
            InvalidParamsError: An argument is wrong.
        """
        options = {
            "sandbox_mode": mode,
            "policy": policy,
            "workdir": workdir,
            "env": None if env is None else dict(env),
            "stdin": stdin,
        }
        spec = self._settings.as_spec(command, options)
        session_id = self.session.session_id
        return self._ask(calls.start(spec, session_id, deadline_ms=deadline_ms))

    def get(self, task_id: str) -> TaskInfo | None:
        """Return the task, or None for an unknown id."""
        return self._ask(calls.get_task(task_id))

    def list(self, *, session_id: str | None = None) -> list[TaskInfo]:
        """Return the caller's tasks, or those of one session, in order of start."""
        return self._ask(calls.list_tasks(session_id))

    def owner_of(self, task_id: str) -> str | None:
        """Return the owner token verbatim; None for unowned and for unknown ids."""
        return self._ask(calls.owner_of(task_id))

    def read_output(self, task_id: str) -> TaskRead | None:
        """Read what came since the last read (one cursor a task); None if unknown."""
        return self._ask(calls.read_output(task_id))

    def take_notices(self, *, owner: str | None = None) -> list[TaskInfo]:
        """Take the finished tasks that nobody has taken yet; each comes once.

        They are kept for whoever asks first, over restarts of client and daemon.

        Args:
            owner: Of these tasks; None takes those of this client's session.
        """
        session_id = self.session.session_id
        return self._ask(
            calls.take_notices(session_id, session_id if owner is None else owner)
        )

    def read_log(self, params: TaskLogsParams) -> TaskLogsResult:
        """Read a slice of a stream without moving the task's cursor.

        Raises:
            UnknownTaskError: No such task.
        """
        return self._ask(calls.read_log(params))

    def kill(self, task_id: str) -> bool:
        """End a running task and return at once; False if it had already settled.

        Raises:
            UnknownTaskError: No such task.
        """
        return self._ask(calls.kill(task_id))

    def wait(self, task_id: str) -> TaskInfo:
        """Wait until a task has settled.

        Raises:
            UnknownTaskError: No such task.
        """
        return self._ask(calls.wait_task(task_id))

    def status(self) -> StatusResult:
        """Return how the daemon is."""
        return self._ask(calls.status())

    def on_task_done(self, listener: TaskListener) -> Callable[[], None]:
        """Call *listener* once per settled task of this session.

        It is called while another method waits for its answer, or by `poll_notices`.

        Returns:
            A function that ends the subscription.
        """
        self._listeners.append(listener)
        if not self._subscribed:
            self._ask(calls.subscribe(self.session.session_id))
            self._subscribed = True

        def unsubscribe() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return unsubscribe

    def poll_notices(self, timeout_s: float = 0.0) -> int:
        """Deliver notices that have arrived, waiting at most *timeout_s* for the first.

        Returns:
            How many messages were handled.
        """
        deadline = time.monotonic() + timeout_s
        poll = select.poll()
        poll.register(self._link, select.POLLIN)
        handled = 0
        while True:
            while (message := self._link.receive_nowait()) is not None:
                handled += 1
                if "method" in message:
                    self._notice(message["method"], message.get("params") or {})
            left_s = 0 if handled else max(0.0, deadline - time.monotonic())
            if not poll.poll(left_s * 1000):
                return handled
            self._link.read()

    def _ask(self, call: Call[T]) -> T:
        return call.read(self._link.call(call.method, call.params))

    def _notice(self, method: str, params: dict[str, Any]) -> None:
        if method == "exec.output":
            sink = self._sinks.get(params.get("request_id", -1))
            if sink is not None:
                sink(*decode_output(params))
        elif method == "task.done":
            task = from_wire(TaskDone, params).task
            for listener in self._listeners.copy():
                tell(listener, task)
