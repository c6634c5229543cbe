"""The async client: the `Executor` protocol over a socket, as coroutines.

`bashd.client.opening` makes one; `bashd.client.sync` is the same without coroutines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import anyio

import bashd.client.calls as calls  # noqa: PLR0402 - `from` would import ourselves
from bashd.core.errors import AbortedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bashd.client.approvals import AsyncApprovals
    from bashd.client.connection import Connection
    from bashd.client.sessions import AsyncSessions
    from bashd.client.settings import Settings
    from bashd.core.abort import AbortSignal
    from bashd.core.executor import OutputSink, TaskListener
    from bashd.core.model import (
        ExecRequest,
        ExecSpec,
        Mode,
        RunResult,
        TaskInfo,
        TaskRead,
    )
    from bashd.protocol.messages import (
        ApprovalAskParams,
        SessionInfo,
        StatusResult,
        TaskLogsParams,
        TaskLogsResult,
    )


T = TypeVar("T")


class Client:
    """The executor seam over a socket; an `Executor`. See `connect`."""

    def __init__(
        self,
        connection: Connection,
        settings: Settings,
        listeners: list[TaskListener],
        sessions: AsyncSessions,
        *,
        approvals: AsyncApprovals,
    ) -> None:
        self._connection = connection
        self._settings = settings
        self._listeners = listeners
        self._subscribed = False
        self.sessions = sessions
        self.approvals = approvals

    @property
    def session(self) -> SessionInfo:
        """This client's session, as it was when it was opened."""
        return self._settings.session

    @property
    def sandbox_mode(self) -> Mode | None:
        """Mode of a call that names none; None when this daemon never confines."""
        return self._settings.sandbox_mode

    async def session_now(self) -> SessionInfo:
        """Return this client's session as it is now."""
        return await self.sessions.get(self.session.session_id)

    async def record(self, event: Mapping[str, object]) -> None:
        """Append to the session's log what became of an approval asked for here."""
        text = {key: str(value) for key, value in event.items()}
        await self.sessions.record(self.session.session_id, text)

    def resolve(self, request: ExecRequest) -> ExecSpec:
        """Apply defaults and caps.

        Raises:
            InvalidParamsError: A number is out of range or the command holds a NUL.
        """
        return self._settings.resolve(request)

    async def run(
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
        abort: AbortSignal | None = None,
        on_output: OutputSink | None = None,
    ) -> RunResult:
        """Run a command in the foreground until it has settled.

        A non-zero exit, a timeout and an abort are results, not errors. Cancelling the
        coroutine aborts the command.

        Args:
            command: For ``bash -c``; or a spec, which takes no options beside it.
            mode: How far this one command may reach; None takes the session's.
            policy: Policy of this one command.
            workdir: Where it runs, relative to the session's cwd.
            timeout_ms: Milliseconds; the daemon's default and cap apply.
            env: Explicit variables, never scrubbed; None removes one.
            stdin: What the command reads; None is ``/dev/null``.
            abort: Ends the command when it fires.
            on_output: Receives live output; what it raises aborts the command.

        Raises:
            StartError: The command never ran.
            SandboxUnavailableError: Nothing can confine it.
            RunnerFailedError: The cell broke.
            AbortedError: *abort* had fired already.
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
        _refuse_if_aborted(abort)
        call = calls.run(spec, self.session.session_id, stream=on_output is not None)
        return await self._ask_or_cancel(call, abort, on_output)

    async def run_or_detach(
        self,
        spec: ExecSpec,
        /,
        *,
        limit_ms: float,
        abort: AbortSignal | None = None,
        on_output: OutputSink | None = None,
    ) -> RunResult | TaskInfo:
        """Run in the foreground, but no longer than a limit.

        Past it the command goes on as a background task of the spec's owner, with every
        byte it has printed still unread, and without a timeout.

        Args:
            spec: The command, resolved.
            limit_ms: Milliseconds in the foreground.
            abort: Ends the command while it is in the foreground.
            on_output: Receives live output until then.

        Raises:
            StartError: As `run`; so do the other errors.
        """
        _refuse_if_aborted(abort)
        call = calls.run_or_detach(
            spec,
            self.session.session_id,
            limit_ms=limit_ms,
            stream=on_output is not None,
        )
        return await self._ask_or_cancel(call, abort, on_output)

    async def ask_approval(
        self, question: ApprovalAskParams, *, abort: AbortSignal | None = None
    ) -> str:
        """Have the caller's watchers asked; returns the word of the outcome.

        Args:
            question: About which command of which session.
            abort: Withdraws the question when it fires.
        """
        return await self._ask_or_cancel(calls.ask_approval(question), abort, None)

    async def _ask_or_cancel(
        self, call: calls.Call[T], abort: AbortSignal | None, sink: OutputSink | None
    ) -> T:
        pending = self._connection.begin(call, sink)

        def cancel() -> None:
            self._connection.cancel(pending.request_id)

        unsubscribe = (abort.subscribe(cancel)) if abort else None
        try:
            return await self._connection.finish(pending, call)
        except anyio.get_cancelled_exc_class():
            cancel()
            raise
        finally:
            if unsubscribe is not None:
                unsubscribe()

    async def start(
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
        abort: AbortSignal | None = None,
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
            abort: Counts until the task has its id, not afterwards.

        Raises:
            SandboxUnavailableError: Nothing can confine it; no id is allocated.
            AbortedError: *abort* had fired already; no id is allocated.
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
        _refuse_if_aborted(abort)
        session_id = self.session.session_id
        return await self._connection.ask(
            calls.start(spec, session_id, deadline_ms=deadline_ms)
        )

    async def get(self, task_id: str) -> TaskInfo | None:
        """Return the task, or None for an unknown id."""
        return await self._connection.ask(calls.get_task(task_id))

    async def list(self, *, session_id: str | None = None) -> list[TaskInfo]:
        """Return the caller's tasks, or those of one session, in order of start."""
        return await self._connection.ask(calls.list_tasks(session_id))

    async def owner_of(self, task_id: str) -> str | None:
        """Return the owner token verbatim; None for unowned and for unknown ids."""
        return await self._connection.ask(calls.owner_of(task_id))

    async def read_output(self, task_id: str) -> TaskRead | None:
        """Read what came since the last read (one cursor a task); None if unknown."""
        return await self._connection.ask(calls.read_output(task_id))

    async def take_notices(self, *, owner: str | None = None) -> list[TaskInfo]:
        """Take the finished tasks that nobody has taken yet; each comes once.

        They are kept for whoever asks first, over restarts of client and daemon.

        Args:
            owner: Of these tasks; None takes those of this client's session.
        """
        session_id = self.session.session_id
        return await self._connection.ask(
            calls.take_notices(session_id, session_id if owner is None else owner)
        )

    async def read_log(self, params: TaskLogsParams) -> TaskLogsResult:
        """Read a slice of a stream without moving the task's cursor.

        Raises:
            UnknownTaskError: No such task.
        """
        return await self._connection.ask(calls.read_log(params))

    async def kill(self, task_id: str) -> bool:
        """End a running task and return at once; False if it had already settled.

        Raises:
            UnknownTaskError: No such task.
        """
        return await self._connection.ask(calls.kill(task_id))

    async def wait(self, task_id: str) -> TaskInfo:
        """Wait until a task has settled.

        Raises:
            UnknownTaskError: No such task.
        """
        return await self._connection.ask(calls.wait_task(task_id))

    async def status(self) -> StatusResult:
        """Return how the daemon is."""
        return await self._connection.ask(calls.status())

    async def wait_lost(self) -> None:
        """Wait until the connection is gone; every call fails from then on."""
        await self._connection.lost.wait()

    def on_task_done(self, listener: TaskListener) -> Callable[[], None]:
        """Call *listener* once per settled task of this session.

        The daemon keeps what nobody has asked to hear, and tells the first listener.

        Returns:
            A function that ends the subscription.
        """
        self._listeners.append(listener)
        if not self._subscribed:
            self._subscribed = True
            # Sent at once and not waited for: what it leads to are notifications.
            self._connection.begin(calls.subscribe(self.session.session_id))

        def unsubscribe() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return unsubscribe


def _refuse_if_aborted(abort: AbortSignal | None) -> None:
    if abort is not None and abort.aborted:
        raise AbortedError(f"aborted before spawn: {abort.reason}")
