"""What the daemon does for its callers: one handler per method of the protocol.

The composition root of sessions, cells, runners, policies and tasks. `serve` runs what
needs to go on by itself (cells' pumps, tasks, reaping); `stop` ends every task and waits.
The connection (`bashd.daemon.api`) calls the handlers and knows nothing of them.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio

import bashd
from bashd.core.config import Config
from bashd.core.errors import (
    AbortedError,
    BashdError,
    InvalidParamsError,
    LimitError,
    Refused,
    SandboxUnavailableError,
)
from bashd.core.model import (
    ExecRequest,
    ExecSpec,
    Mode,
    RunResult,
    SandboxFacts,
    TaskInfo,
)
from bashd.core.policy import Policy
from bashd.core.remedy import Remedy, allows
from bashd.core.resolve import resolve_request
from bashd.daemon.access import ConfinedAs
from bashd.daemon.adoption import AdoptionSocket
from bashd.daemon.afterwards import afterwards
from bashd.daemon.approvals import Approvals
from bashd.daemon.audit_file import AuditFile
from bashd.daemon.audit_log import AuditLog
from bashd.daemon.audit_runs import RunEntries
from bashd.daemon.audited import audited, refused
from bashd.daemon.background import Background
from bashd.daemon.call import Call, Handler
from bashd.daemon.cell import Cell
from bashd.daemon.cells import Environment, Tools
from bashd.daemon.cgroups import Cgroups
from bashd.daemon.detach import run_or_detach
from bashd.daemon.evidence import Evidence
from bashd.daemon.execution import Command, Execution
from bashd.daemon.explain import Explain
from bashd.daemon.folders import DaemonFolders
from bashd.daemon.foreground import Foreground, ForegroundRun
from bashd.daemon.identity import run_as
from bashd.daemon.judgement import Case, Judge, remember
from bashd.daemon.metrics import Metrics
from bashd.daemon.metrics_socket import SUFFIX, MetricsSocket
from bashd.daemon.output import StreamStore
from bashd.daemon.policies import PolicyStore, User
from bashd.daemon.probe import probe_runner
from bashd.daemon.records import Records
from bashd.daemon.restore import Restore
from bashd.daemon.room import RESERVE, descriptors_left
from bashd.daemon.run import Stop
from bashd.daemon.runners import Runners, check_root
from bashd.daemon.session import Session
from bashd.daemon.session_calls import SessionCalls
from bashd.daemon.sessions import Sessions
from bashd.daemon.shares import Shares, group_names
from bashd.daemon.survey import MountTable
from bashd.daemon.task import Task, TaskTable
from bashd.daemon.task_calls import TaskCalls
from bashd.protocol.messages import (
    PROTOCOL_VERSION,
    DetachParams,
    DetachResult,
    Empty,
    ExecParams,
    ExecutorDefaults,
    InitializeResult,
    StatusResult,
)

if TYPE_CHECKING:
    from bashd.core.ceiling import Ceiling
    from bashd.daemon.peer import Caller

Gauge = Callable[[], float]

_TASK_DESCRIPTORS = 6
"""Of a running task: request socket, two pipes, pidfd, two output files."""
_BEGIN_S = 10.0
"""For tasks whose cell is being built when the program is replaced."""
_BEGIN_LOOK_S = 0.01
_REAP_EVERY_S = 20.0
"""Idle cells may live this much longer than configured; a rarer wake-up is the gain."""
_REAP_AT_MOST_EVERY_S = 0.5
"""Where sessions are closed sooner than that."""
_SETTLE_S = 0.5
"""From the last rung of a kill ladder to its result; reaping sees to what is later."""


class Service:
    """Serves the methods of the protocol; see the module docstring."""

    def __init__(
        self,
        config: Config,
        folders: DaemonFolders,
        *,
        adoption: AdoptionSocket | None = None,
        open_files: int = 1024,
    ) -> None:
        self.config = config
        self.folders = folders
        self.tools = Tools.find(config.sandbox.bwrap_path)
        self.tasks = TaskTable()
        self._mounts = MountTable()
        self._environment = Environment(
            self.tools,
            self._mounts,
            self._spawn_pump,
            config.daemon.spares,
            Cgroups.find() if config.daemon.cgroups else Cgroups(),
            open_files=open_files,
        )
        if config.source.startswith("/"):
            self._environment.guarded = (config.source,)
        self._adoption = adoption
        if adoption is not None:
            self._environment.home = adoption.home(config.daemon.orphan_timeout_s)
        self.records = Records(folders.state_dir)
        self.shares = Shares(config)
        self.sessions = Sessions(
            config, folders, self._environment, self.records, shares=self.shares
        )
        self.runners = Runners(
            config.sandbox.runner,
            self._probe,
            config.sandbox.probe_timeout_ms / 1000,
        )
        self._policies = PolicyStore(ceilings=config.ceilings)
        self._users: dict[str, tuple[User, Ceiling]] = {}
        self.evidence = Evidence(self.tools.abi)
        self._environment.records_on = lambda: self.evidence.on
        self.audit = _audit_log(config, folders)
        entries = RunEntries(self.audit, config.audit.command_text)
        self.execution = Execution(
            config,
            self.runners,
            self._load_policy,
            self.evidence,
            began=entries.began,
        )
        listeners = [remember, self._keep, entries.ended]
        self._judge = Judge(self.evidence, listeners, entries.failed)
        self._foreground = Foreground(self.execution, self._judge)
        self._started = trio.current_time()
        self._cwd = config.executor.cwd or str(Path.cwd())
        self._nursery: trio.Nursery | None = None
        self._background: Background | None = None
        self._handlers: dict[str, Handler] = {}
        self._running_calls = 0
        self.metrics = Metrics()
        self._metrics_socket: MetricsSocket | None = None
        if adoption is not None and config.metrics.enabled:
            path = adoption.path.with_suffix(SUFFIX)
            self._metrics_socket = MetricsSocket(self.metrics, path, config.metrics)
        self._default_mode = config.sandbox.mode

    # -- life -----------------------------------------------------------------------

    async def serve(
        self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Run until cancelled; says *started* when handlers may be called."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await nursery.start(self.evidence.run)
            await nursery.start(self.audit.serve)
            self.audit.note("daemon.start", version=bashd.__version__, pid=os.getpid())
            self._background = Background(
                self.execution,
                self._judge,
                self.tasks,
                self.records,
                nursery,
                self.shares,
                self.config.executor.grace_ms / 1000,
            )
            task_calls = TaskCalls(self.tasks, self.sessions, self._background)
            session_calls = SessionCalls(
                self.sessions,
                self.tasks,
                execution=self.execution,
                runners=self.runners,
                background=self._background,
                forget=self.forget_user,
            )
            approvals = Approvals(self.sessions, self.config.approval.wait_s)
            explain = Explain(
                self.sessions,
                self.tasks,
                self.evidence,
                self._read_policy,
                self._exceeds_ceiling,
                str(self.folders.state_dir),
            )
            handlers = {
                "daemon.status": self._status,
                "exec.run": self._counted(self._exec_run),
                "exec.start": self._counted(self._exec_start),
                "exec.run_or_detach": self._counted(self._exec_run_or_detach),
                **approvals.handlers(),
                **session_calls.handlers(),
                **task_calls.handlers(),
                **explain.handlers(),
            }
            self._handlers = audited(handlers, self.audit)
            self.tasks.on_done(task_calls.announce)
            self.tasks.on_done(self.metrics.task_ended)
            self.metrics.gauges.update(self._gauges(approvals))
            restore = Restore(self.records, self.sessions, self.tasks, self._background)
            await restore.load()
            if self._adoption is not None:
                nursery.start_soon(self._adoption.serve, restore.find, restore.take)
            if self._metrics_socket is not None:
                nursery.start_soon(self._metrics_socket.serve)
            nursery.start_soon(self._environment.cgroups.serve)
            nursery.start_soon(restore.settle_missing)
            nursery.start_soon(self._reap_for_ever, session_calls)
            task_status.started()

    async def leave(self) -> None:
        """Wait until every task that was asked for runs, so that it can be taken over."""
        with trio.move_on_after(_BEGIN_S):
            while any(not task.runs for task in self.tasks.unsettled()):  # noqa: ASYNC110
                await trio.sleep(_BEGIN_LOOK_S)

    async def stop(self) -> None:
        """End every task and session and wait until nothing of them is left."""
        async with trio.open_nursery() as nursery:
            for session in self.sessions:
                session.closing = True
                nursery.start_soon(self._end_session, session)
        self.audit.note("daemon.stop", pid=os.getpid())
        await self.audit.close()
        self._mounts.close()
        self._environment.cgroups.close()
        if self._adoption is not None:
            self._adoption.close()
        if self._metrics_socket is not None:
            self._metrics_socket.close()
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()

    async def _end_session(self, session: Session) -> None:
        if self._background is not None:
            await self._background.stop_tasks(session)
        self.tasks.forget(self.tasks.of_session(session))
        await self.sessions.close(session, keep_record=True)

    async def _reap_for_ever(self, session_calls: SessionCalls) -> None:
        idle = self.config.sessions
        shortest_s = min(idle.idle_timeout_s, idle.default_idle_timeout_s)
        # A quarter late at most.
        pause_s = max(min(_REAP_EVERY_S, shortest_s / 4), _REAP_AT_MOST_EVERY_S)
        while True:
            await self.sessions.wait_due(pause_s)
            for session in await self.sessions.reap():
                await session_calls.close_session(session)

    @property
    def busy(self) -> bool:
        """Whether a call or a background task is under way."""
        return bool(self._running_calls or self.tasks.running())

    def _spawn_pump(self, cell: Cell) -> None:
        assert self._nursery is not None  # noqa: S101 - cells exist only while serving
        self._nursery.start_soon(cell.pump)

    async def _probe(self, runner: str) -> str | None:
        return await probe_runner(runner, self.folders, self._environment)

    # -- what connections ask ---------------------------------------------------------

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """Method to handler."""
        return self._handlers

    def initialize_result(self, call: Call) -> InitializeResult:
        """Answer the first request of a connection."""
        executor = self.config.executor
        mode = self._default_mode
        return InitializeResult(
            protocol=PROTOCOL_VERSION,
            version=bashd.__version__,
            pid=os.getpid(),
            uid=call.caller.uid,
            executor=ExecutorDefaults(
                cwd=self._cwd,
                timeout_ms=executor.timeout_ms,
                max_timeout_ms=executor.max_timeout_ms,
                max_output_bytes=executor.max_output_bytes,
                max_spill_bytes=executor.max_spill_bytes,
                grace_ms=executor.grace_ms,
                sandbox_mode=mode,
            ),
        )

    def cell_of(self, pid: int) -> ConfinedAs | None:
        """Return the live cell that holds a process; None if none is known to."""
        leaders = {
            cell.process.pid: (session, cell)
            for session in self.sessions
            for cell in session.cells.live()
        }
        for ancestor in _ancestors(pid):
            if ancestor in leaders:
                return _reach(*leaders[ancestor])
        return None

    def reach_of_task(self, caller: Caller, task_id: str) -> ConfinedAs | None:
        """Return session and mode of a task of the caller's uid."""
        task = self.tasks.find(caller.uid, task_id)
        if task is None:
            return None
        return ConfinedAs(task.session.session_id, task.mode)

    def refused(self, caller: Caller, method: str, error: Refused) -> None:
        """Log what a confined caller was refused."""
        refused(self.audit, caller, method, error)

    async def _status(self, call: Call, _: Empty) -> StatusResult:
        uid = call.caller.uid
        sessions = self.sessions.of_user(uid)
        return StatusResult(
            version=bashd.__version__,
            pid=os.getpid(),
            uptime_s=round(trio.current_time() - self._started, 3),
            sessions=len(sessions),
            cells=sum(len(s.cells.live()) for s in sessions),
            tasks=sum(not t.settled for t in self.tasks.of_user(uid)),
            runner=self.runners.chosen,
            records="" if self.evidence.on else self.evidence.why_off,
        )

    # -- figures ------------------------------------------------------------------------

    def _gauges(self, approvals: Approvals) -> dict[str, tuple[str, Gauge]]:
        sessions, tasks = self.sessions, self.tasks
        return {
            "bashd_uptime_seconds": (
                "Since this daemon started.",
                lambda: round(trio.current_time() - self._started, 3),
            ),
            "bashd_sessions": ("Open sessions.", lambda: len(sessions)),
            "bashd_cells": (
                "Live cells.",
                lambda: sum(len(session.cells.live()) for session in sessions),
            ),
            "bashd_tasks_running": (
                "Background tasks that run.",
                tasks.running,
            ),
            "bashd_calls_in_flight": (
                "Commands that somebody waits for.",
                lambda: self._running_calls,
            ),
            "bashd_approvals_pending": (
                "Questions nobody has answered.",
                lambda: approvals.pending,
            ),
            "bashd_output_kept_bytes": (
                "Output on disk, in whole blocks.",
                lambda: self.shares.output_kept_bytes,
            ),
        }

    def _counted(self, handler: Handler) -> Handler:
        async def counted(call: Call, params: Any) -> Any:  # noqa: ANN401 - as Handler
            try:
                return await handler(call, params)
            except BashdError as error:
                self.metrics.refused(error.code)
                raise

        return counted

    # -- commands -----------------------------------------------------------------------

    async def _exec_run(self, call: Call, params: ExecParams) -> RunResult:
        self._running_calls += 1
        try:
            session = await self._session_of(call, params)
            session.active += 1
            try:
                return await self._run_in(session, call, params)
            finally:
                session.active -= 1
                session.touch()
        finally:
            self._running_calls -= 1

    async def _run_in(
        self, session: Session, call: Call, params: ExecParams
    ) -> RunResult:
        began = trio.current_time()
        command = await self._prepare(session, params, call)
        if call.terminal is not None:
            # People sit at it: what ends it is they, unless they set a time.
            has_timeout = params.timeout_ms is not None
            command = replace(command, terminal=call.terminal, has_timeout=has_timeout)
        self.metrics.prepared.add(trio.current_time() - began)
        stores = self._stores(session, command.spec, file_from_start=False)
        run = await self._foreground.run(
            session,
            command,
            stores,
            call,
            stdin=call.stdin or await _one_piece(params.stdin_b64),
            stream=params.stream,
        )
        # After the answer: nobody waits for the line.
        afterwards(_log_run, session, run)
        self.metrics.run_ended(
            str(command.mode), run.result, trio.current_time() - began
        )
        if run.result.aborted and call.client.closed.aborted:
            self._list_aborted(session, command, run)
        elif run.result.stdout.spill_path or run.result.stderr.spill_path:
            session.spilled.extend(stores)
        return run.result

    async def _exec_start(self, call: Call, params: ExecParams) -> TaskInfo:
        assert self._background is not None  # noqa: S101 - handlers exist while serving
        session = await self._session_of(call, params)
        command = await self._prepare(session, params, call)
        if call.abort.aborted:
            raise AbortedError(f"aborted before spawn: {call.abort.reason}")
        stores = self._stores(session, command.spec, file_from_start=True)
        deadline = params.deadline_ms
        task = self._background.start(
            session,
            command,
            stores,
            owner=params.owner,
            deadline_s=None if deadline is None else deadline / 1000,
            stdin=call.stdin or await _one_piece(params.stdin_b64),
        )
        return task.info()

    async def _exec_run_or_detach(
        self, call: Call, params: DetachParams
    ) -> DetachResult:
        assert self._background is not None  # noqa: S101 - handlers exist while serving
        if not 0 < params.limit_ms < float("inf"):
            raise InvalidParamsError("limit_ms must be a positive finite number")
        inner = params.call
        session = await self._session_of(call, inner)
        began = trio.current_time()
        command = await self._prepare(session, inner, call)
        ended = await run_or_detach(
            self._background,
            session,
            command,
            self._stores(session, command.spec, file_from_start=True),
            call=call,
            owner=inner.owner,
            limit_s=params.limit_ms / 1000,
            stream=inner.stream,
        )
        if ended.result is not None:
            self.metrics.run_ended(
                str(command.mode), ended.result, trio.current_time() - began
            )
        return ended

    async def _session_of(self, call: Call, params: ExecParams) -> Session:
        identity = call.caller.identity
        if params.session_id is not None:
            session = self.sessions.find(identity.uid, params.session_id)
        elif params.cwd is not None:
            session = await self.sessions.default(identity, params.cwd, job=params.job)
        else:
            root = self.config.sandbox.workspace_root
            session = await self.sessions.default(
                identity, self._configured_root(root), anonymous=True
            )
        if params.ambient is not None and not session.ambient:
            session.ambient = dict(params.ambient)
        session.touch()
        return session

    def _configured_root(self, root: str | None) -> str:
        if root is not None and not Path(root).is_dir():
            raise SandboxUnavailableError(
                f'sandbox mode "{self.config.sandbox.mode}" is requested but no sandbox'
                " backend is usable on this host; refusing to run the command"
                " unconfined. Make the folder or correct [sandbox] workspace_root."
                f" Runner failure: workspace_root {root} does not exist"
            )
        return root or self._cwd

    def _check_descriptors(self) -> None:
        left = descriptors_left() - RESERVE
        if left >= self.tasks.count() * _TASK_DESCRIPTORS:
            return  # enough even if none of them had begun: no need to look at each
        coming = sum(task.spare is None for task in self.tasks.unsettled())
        if left < coming * _TASK_DESCRIPTORS:
            raise LimitError(
                "the daemon has no descriptors left; end some tasks, or raise its limit"
                " (LimitNOFILE= in its unit, ulimit -Hn)"
            )

    async def _prepare(
        self, session: Session, params: ExecParams, call: Call
    ) -> Command:
        self._check_descriptors()
        executor = self.config.executor
        spec = resolve_request(
            ExecRequest(
                command=params.command,
                workdir=params.workdir,
                timeout_ms=params.timeout_ms,
                env=params.env,
                managed_env=params.managed_env,
                stdout_max_bytes=params.stdout_max_bytes,
                owner=params.owner,
                sandbox_mode=params.mode,
                policy=params.policy,
            ),
            cwd=session.cwd,
            timeout_ms=executor.timeout_ms,
            max_timeout_ms=executor.max_timeout_ms,
            max_output_bytes=executor.max_output_bytes,
        )
        ambient, removed = session.ambient, session.env_removed
        if params.ambient is not None:
            ambient, removed = params.ambient, params.env_removed
        workdir = spec.workdir if params.workdir is not None else None
        if session.anonymous and workdir is None and self._cwd != session.cwd:
            workdir = self._cwd
        command = await self.execution.prepare(
            session,
            spec,
            workdir=workdir,
            ambient=ambient,
            already_removed=removed,
            asked_timeout_ms=params.timeout_ms,
            asked_by=call.caller.pid,
        )
        uid, abi = session.identity.uid, self.tools.abi
        check_root(command.mode, command.runner, uid, abi)
        self._watch_job(session)
        return command

    def _watch_job(self, session: Session) -> None:
        clock = session.job_time
        if clock.ends is None or clock.watch is not None or self._nursery is None:
            return
        clock.watch = trio.CancelScope()
        self._nursery.start_soon(self._end_job, session, clock.watch)

    async def _end_job(self, session: Session, scope: trio.CancelScope) -> None:
        """End what commands have left behind, when the job's time is over.

        The commands themselves have a deadline each, and their grace.
        """
        left_s = max(-session.job_time.over_for, 0)
        grace_s = self.config.executor.grace_ms / 1000
        with scope:
            await trio.sleep(left_s + grace_s + _SETTLE_S)
        if not session.closing:
            await session.cells.reap(0)

    def _stores(
        self, session: Session, spec: ExecSpec, *, file_from_start: bool
    ) -> tuple[StreamStore, StreamStore]:
        executor = self.config.executor
        caps = {"stdout": spec.stdout_max_bytes, "stderr": executor.max_output_bytes}
        if file_from_start:
            caps["stdout"] = executor.max_output_bytes
        stdout, stderr = (
            StreamStore(
                label,
                directory=session.output,
                max_bytes=cap,
                max_spill_bytes=executor.max_spill_bytes,
                file_from_start=file_from_start,
                budget=session.budget,
            )
            for label, cap in caps.items()
        )
        return stdout, stderr

    def _keep(self, case: Case, _: SandboxFacts) -> None:
        """Put a command that there is something to explain about on disk."""
        remembered = case.session.history.last()
        if remembered is not None and remembered.facts.is_telling:
            afterwards(
                self.records.append_run,
                case.session.session_id,
                remembered.facts.record(),
            )

    def _list_aborted(
        self, session: Session, command: Command, run: ForegroundRun
    ) -> None:
        task = Task(
            task_id=self.tasks.next_id(session.identity.uid),
            session=session,
            run_id=command.run_id,
            command=command.spec.command,
            workdir=run.workdir,
            owner=None,
            mode=command.mode,
            stdout=run.stdout,
            stderr=run.stderr,
            stop=Stop(),
        )
        if self._background is not None:
            self._background.list_aborted(task, run.ended, run.facts)

    # -- policies -----------------------------------------------------------------------

    async def _load_policy(
        self, session: Session, name: str | None, mode: Mode | None
    ) -> Policy:
        user, ceiling = self._user_of(session)
        chosen = name or session.policy
        if chosen is None:
            chosen = (
                str(mode) if mode is not None else self.config.default_policy(ceiling)
            )
            mode = None
        return await run_as(
            session.identity,
            lambda: self._policies.load(chosen, user, mode=mode),
        )

    def _user_of(self, session: Session) -> tuple[User, Ceiling]:
        known = self._users.get(session.session_id)
        if known is None:
            identity = session.identity
            config_home = session.ambient.get("XDG_CONFIG_HOME", "")
            runtime = session.ambient.get("XDG_RUNTIME_DIR", "")
            groups = group_names(identity)
            user = User(
                identity.name,
                groups,
                identity.home,
                config_home
                if config_home.startswith("/")
                else f"{identity.home}/.config",
                runtime if runtime.startswith("/") else None,
            )
            ceiling = self.config.ceiling_of(identity.name, groups, home=identity.home)
            known = self._users[session.session_id] = (user, ceiling)
        return known

    async def _read_policy(self, session: Session, name: str) -> Policy:
        user, _ = self._user_of(session)
        return await run_as(
            session.identity, lambda: self._policies.merged(name, user, bounded=False)
        )

    def _exceeds_ceiling(self, session: Session, one: Remedy) -> bool:
        user, _ = self._user_of(session)
        bounds = self._policies.ceiling(user).values
        return any(
            not allows(bounds, key, value, home=user.home)
            for key, value in one.grants.items()
        )

    def forget_user(self, session: Session) -> None:
        """Drop what was remembered for a session that has closed."""
        self._users.pop(session.session_id, None)


def _reach(session: Session, cell: Cell) -> ConfinedAs | None:
    mode = Mode(cell.mode)
    if not mode.confines:
        return None
    built = session.cells.built.get(cell.cell_id)
    policy = None if built is None else built.policy
    return ConfinedAs(session.session_id, mode, policy)


def _audit_log(config: Config, folders: DaemonFolders) -> AuditLog:
    audit = config.audit
    if not audit.enabled:
        return AuditLog()
    path = Path(audit.path) if audit.path else folders.state_dir / "audit.jsonl"
    file = AuditFile(path, rotate_bytes=audit.rotate_bytes, keep_files=audit.keep_files)
    return AuditLog(file)


def _ancestors(pid: int) -> list[int]:
    """Return the pid and those of its ancestors, as the host numbers them."""
    found: list[int] = []
    while pid > 1 and pid not in found:
        found.append(pid)
        try:
            text = Path(f"/proc/{pid}/stat").read_bytes()
        except OSError:
            break
        pid = int(text[text.rfind(b")") + 2 :].split()[1])
    return found


async def _one_piece(data: str | None) -> trio.abc.ReceiveChannel[bytes] | None:
    """Return a channel that holds the whole stdin, or None where none was given."""
    if data is None:
        return None
    try:
        content = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidParamsError(f"stdin_b64 is not base64: {error}") from error
    send, receive = trio.open_memory_channel[bytes](1)
    async with send:
        if content:
            await send.send(content)
    return receive


def _log_run(session: Session, run: ForegroundRun) -> None:
    session.log.append(_run_event(run))


def _run_event(run: ForegroundRun) -> dict[str, object]:
    result, command = run.result, run.command
    return {
        "type": "bash/run",
        "run_id": result.run_id,
        "command": command.spec.command[:4096],
        "workdir": run.workdir,
        "mode": str(command.mode),
        "exit_code": result.exit_code,
        "signal": result.signal,
        "timed_out": result.timed_out,
        "aborted": result.aborted,
        "denied": run.facts.denied,
        "wall_ms": result.usage.wall_ms,
    }
