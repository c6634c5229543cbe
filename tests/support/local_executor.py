"""An executor in this process, without a daemon: real commands, real signals.

It fulfils the `Executor` protocol over asyncio or trio. Without a confinement it
never confines; with `Bwrap` each command runs in a bubblewrap of its own, so that
denials and grants can be shown for real. Everything is kept as small as the contract
allows: this is what the tools are tried against, not what runs commands for users.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

import anyio

from bashd.core.errors import (
    AbortedError,
    InvalidParamsError,
    StartError,
    UnknownTaskError,
)
from bashd.core.model import (
    ExecRequest,
    ExecSpec,
    Mode,
    RunResult,
    SandboxFacts,
    StreamOutput,
    TaskInfo,
    TaskRead,
    TaskStatus,
    Verdict,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bashd.core.abort import AbortSignal
    from bashd.core.executor import OutputSink, TaskListener

_log = logging.getLogger(__name__)
_READ_BYTES = 1 << 16


@dataclass(frozen=True)
class LocalConfig:
    """Settings; the defaults are the contract's."""

    cwd: str = ""
    timeout_ms: float = 120_000
    max_timeout_ms: float = 600_000
    max_output_bytes: int = 64_000
    max_spill_bytes: int = 64 << 20
    grace_ms: float = 3_000
    sandbox_mode: Mode | None = None


class Confinement(Protocol):
    def argv(self, spec: ExecSpec, mode: Mode) -> list[str]: ...

    def denied(self, exit_code: int | None, stderr: str) -> bool: ...


@dataclass(frozen=True)
class Bwrap:
    """One bubblewrap a command; *root* is writable under workspace-write."""

    root: str

    def argv(self, spec: ExecSpec, mode: Mode) -> list[str]:
        bind = "--bind" if mode is Mode.WORKSPACE_WRITE else "--ro-bind"
        walls = ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
        root = [bind, self.root, self.root, "--chdir", spec.workdir]
        return ["bwrap", *walls, *root, "--cap-drop", "ALL", "--"]

    def denied(self, exit_code: int | None, stderr: str) -> bool:
        return bool(exit_code) and "read-only file system" in stderr.lower()


class Stream:
    """The tail of one output stream, and the file behind it once it overflows."""

    def __init__(self, label: str, folder: Path, keep: int, max_spill: int) -> None:
        self.label, self.total, self.cursor = label, 0, 0
        self._tail = bytearray()
        self._folder, self._keep, self._max_spill = folder, keep, max_spill
        self._spill: Path | None = None
        self._overflowed = False

    def write(self, data: bytes) -> None:
        held = bytes(self._tail)
        self.total += len(data)
        self._tail += data
        if self.total > self._keep:
            self._spill_out(held, data)
            del self._tail[: -self._keep]

    def _spill_out(self, held: bytes, data: bytes) -> None:
        first, self._overflowed = not self._overflowed, True
        if self.total > self._max_spill:
            if self._spill is not None:
                self._spill.unlink(missing_ok=True)
            self._spill = None
        elif first:
            fd, name = tempfile.mkstemp(f"-{self.label}.log", dir=self._folder)
            os.close(fd)
            self._spill = Path(name)
            self._spill.write_bytes(held + data)
        elif self._spill is not None:
            with self._spill.open("ab") as file:
                file.write(data)

    def read_new(self) -> tuple[bytes, bool]:
        start = self.total - len(self._tail)
        lossy = self.cursor < start
        data = bytes(self._tail[max(0, self.cursor - start) :])
        self.cursor = self.total
        return data, lossy

    @property
    def spill_path(self) -> str | None:
        return str(self._spill) if self._spill else None

    def output(self) -> StreamOutput:
        return StreamOutput(
            text=self._tail.decode(errors="replace"),
            truncated=self.total > self._keep,
            spill_path=self.spill_path,
            bytes=self.total,
        )


class Child:
    """One running command: its process group, its pipes, how it ended."""

    def __init__(
        self, argv: list[str], spec: ExecSpec, streams: tuple[Stream, Stream]
    ) -> None:
        self.streams = streams
        self.on_output: OutputSink | None = None
        self.cause: str | None = None
        env = {**os.environ, "NO_COLOR": "1", "TERM": "dumb", "PAGER": "cat"}
        self._popen = subprocess.Popen(
            argv,
            cwd=spec.workdir,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            restore_signals=True,
        )
        self.pid = self._popen.pid
        self._pidfd = os.pidfd_open(self.pid)
        self._killing = False

    async def settle(self, grace_s: float) -> None:
        """Wait for the exit, then for the pipes no longer than the grace."""
        pipes = [pipe for pipe in (self._popen.stdout, self._popen.stderr) if pipe]
        try:
            async with anyio.create_task_group() as drains:
                for stream, pipe in zip(self.streams, pipes, strict=True):
                    drains.start_soon(self._drain, stream, pipe.fileno())
                await anyio.wait_readable(self._pidfd)
                self._popen.wait()
                drains.cancel_scope.deadline = anyio.current_time() + grace_s
        finally:
            os.close(self._pidfd)
            for pipe in pipes:
                pipe.close()

    async def _drain(self, stream: Stream, fd: int) -> None:
        while True:
            await anyio.wait_readable(fd)
            data = os.read(fd, _READ_BYTES)
            if not data:
                return
            stream.write(data)
            if self.on_output is not None:
                self.on_output(stream.label, data)

    async def kill_tree(self, grace_s: float) -> None:
        """TERM the group, and KILL what is left of it after the grace."""
        if self._killing:
            return
        self._killing = True
        self._signal(signal.SIGTERM)
        with anyio.move_on_after(grace_s):
            # Nothing tells a process when a group it does not lead has emptied.
            while self._alive():  # noqa: ASYNC110 - see above
                await anyio.sleep(0.02)
        self._signal(signal.SIGKILL)

    def reap(self) -> None:
        """Collect a child that was killed without anyone waiting for it."""
        self._popen.wait()

    def _alive(self) -> bool:
        return any(group == self.pid for group in _groups_of_living())

    def _signal(self, number: int) -> None:
        if self._alive():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    @property
    def exit_code(self) -> int | None:
        code = self._popen.returncode
        return code if code is not None and code >= 0 else None

    @property
    def signal_name(self) -> str | None:
        code = self._popen.returncode
        return signal.Signals(-code).name if code is not None and code < 0 else None


@dataclass
class Task:
    """A background task."""

    task_id: str
    spec: ExecSpec
    streams: tuple[Stream, Stream]
    child: Child | None = None
    status: TaskStatus = TaskStatus.RUNNING
    sandbox: SandboxFacts | None = None
    started_at: float = field(default_factory=time.time)
    done: anyio.Event = field(default_factory=anyio.Event)

    def info(self) -> TaskInfo:
        settled = self.child is not None and self.done.is_set()
        return TaskInfo(
            task_id=self.task_id,
            session_id=self.spec.owner,
            command=self.spec.command,
            status=self.status,
            exit_code=self.child.exit_code if settled and self.child else None,
            signal=self.child.signal_name if settled and self.child else None,
            started_at=self.started_at,
            age_s=time.time() - self.started_at,
            stdout_bytes=self.streams[0].total,
            stderr_bytes=self.streams[1].total,
            owner=self.spec.owner,
            workdir=self.spec.workdir,
            sandbox=self.sandbox,
        )


class LocalExecutor:
    """Use as an async context manager; leaving it disposes of every task."""

    def __init__(
        self, config: LocalConfig, confinement: Confinement | None = None
    ) -> None:
        self._config = config
        self._confinement = confinement
        self._tasks: dict[str, Task] = {}
        self._listeners: list[TaskListener] = []
        self._count = 0

    async def __aenter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="bashd-test-"))
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._listeners.clear()
        for task in self._tasks.values():
            if task.status is TaskStatus.RUNNING:
                self._begin_kill(task)
        try:
            await self._group.__aexit__(None, None, None)
        finally:
            self._tasks.clear()
            shutil.rmtree(self._folder)

    @property
    def sandbox_mode(self) -> Mode | None:
        return self._config.sandbox_mode

    def resolve(self, request: ExecRequest) -> ExecSpec:
        config = self._config
        asked = request.timeout_ms
        if asked is not None and not (math.isfinite(asked) and asked > 0):
            raise InvalidParamsError(
                "request.timeoutMs must be a positive finite number"
            )
        if "\0" in request.command:
            raise InvalidParamsError("command must not contain a NUL character")
        base = config.cwd or str(Path.cwd())
        mode = request.sandbox_mode or config.sandbox_mode
        return ExecSpec(
            command=request.command,
            workdir=str(Path(base) / (request.workdir or base)),
            timeout_ms=min(asked or config.timeout_ms, config.max_timeout_ms),
            stdout_max_bytes=request.stdout_max_bytes or config.max_output_bytes,
            owner=request.owner,
            sandbox_mode=mode,
        )

    async def run(
        self,
        spec: ExecSpec,
        *,
        abort: AbortSignal | None = None,
        on_output: OutputSink | None = None,
    ) -> RunResult:
        _refuse_aborted(abort)
        child = self._spawn_or_fail(spec)
        child.on_output = on_output
        return await self._in_foreground(child, spec, abort)

    async def run_or_detach(
        self,
        spec: ExecSpec,
        *,
        limit_ms: float,
        abort: AbortSignal | None = None,
        on_output: OutputSink | None = None,
    ) -> RunResult | TaskInfo:
        _refuse_aborted(abort)
        child = self._spawn_or_fail(spec)
        child.on_output = on_output
        task = Task("", spec, child.streams, child)
        self._group.start_soon(self._supervise, task)
        forget = self._kill_on_abort(child, abort)
        async with anyio.create_task_group() as group:
            group.start_soon(self._expire, child, spec.timeout_ms / 1000)
            with anyio.move_on_after(limit_ms / 1000):
                await task.done.wait()
            if child.cause is not None:
                await task.done.wait()
            group.cancel_scope.cancel()
        forget()
        child.on_output = None
        if task.done.is_set():
            return self._result(child, spec)
        self._file(task)
        return task.info()

    async def start(
        self, spec: ExecSpec, *, abort: AbortSignal | None = None
    ) -> TaskInfo:
        _refuse_aborted(abort)
        task = Task("", spec, self._streams(self._config.max_output_bytes))
        self._file(task)
        try:
            task.child = Child(self._argv(spec), spec, task.streams)
        except OSError as error:
            task.streams[1].write(_spawn_failure(error).encode())
            self._group.start_soon(self._settle_unspawned, task)
            return task.info()
        if abort is not None:
            abort.subscribe(lambda: self._begin_kill(task))
        self._group.start_soon(self._supervise, task)
        return task.info()

    async def get(self, task_id: str) -> TaskInfo | None:
        task = self._tasks.get(task_id)
        return task.info() if task else None

    async def list(self) -> list[TaskInfo]:
        return [task.info() for task in self._tasks.values()]

    async def owner_of(self, task_id: str) -> str | None:
        task = self._tasks.get(task_id)
        return task.spec.owner if task else None

    async def read_output(self, task_id: str) -> TaskRead | None:
        task = self._tasks.get(task_id)
        if task is None:
            return None
        out, out_lossy = task.streams[0].read_new()
        err, err_lossy = task.streams[1].read_new()
        delta = out.decode(errors="replace")
        if err:
            delta += "\n" if delta and not delta.endswith("\n") else ""
            delta += "[stderr]\n" + err.decode(errors="replace")
        paths = [stream.spill_path for stream in task.streams]
        return TaskRead(
            delta=delta,
            lossy=out_lossy or err_lossy,
            spill_paths=tuple(path for path in paths if path),
            task=task.info(),
        )

    async def kill(self, task_id: str) -> bool:
        task = self._tasks.get(task_id)
        if task is None:
            raise UnknownTaskError(f'unknown bash task "{task_id}"')
        if task.status is not TaskStatus.RUNNING:
            return False
        self._begin_kill(task)
        return True

    def on_task_done(self, listener: TaskListener) -> Callable[[], None]:
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def wait(self, task_id: str) -> TaskInfo:
        """Wait until the task has settled and its listeners have heard of it."""
        task = self._tasks[task_id]
        await task.done.wait()
        return task.info()

    async def _in_foreground(
        self, child: Child, spec: ExecSpec, abort: AbortSignal | None
    ) -> RunResult:
        forget = self._kill_on_abort(child, abort)
        grace_s = self._config.grace_ms / 1000
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._expire, child, spec.timeout_ms / 1000)
                await child.settle(grace_s)
                group.cancel_scope.cancel()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await child.kill_tree(grace_s)
                child.reap()
            raise
        finally:
            forget()
        return self._result(child, spec)

    async def _expire(self, child: Child, after_s: float) -> None:
        await anyio.sleep(after_s)
        child.cause = child.cause or "timeout"
        self._group.start_soon(child.kill_tree, self._config.grace_ms / 1000)

    def _kill_on_abort(
        self, child: Child, abort: AbortSignal | None
    ) -> Callable[[], None]:
        def on_abort() -> None:
            child.cause = child.cause or "abort"
            self._group.start_soon(child.kill_tree, self._config.grace_ms / 1000)

        return abort.subscribe(on_abort) if abort else lambda: None

    def _result(self, child: Child, spec: ExecSpec) -> RunResult:
        return RunResult(
            exit_code=child.exit_code,
            signal=child.signal_name,
            timed_out=child.cause == "timeout",
            aborted=child.cause == "abort",
            timeout_ms=spec.timeout_ms,
            stdout=child.streams[0].output(),
            stderr=child.streams[1].output(),
            sandbox=self._facts(child, spec, background=False),
        )

    def _file(self, task: Task) -> None:
        self._count += 1
        task.task_id = f"bash-{self._count}"
        self._tasks[task.task_id] = task

    async def _supervise(self, task: Task) -> None:
        assert task.child is not None
        await task.child.settle(self._config.grace_ms / 1000)
        self._settled(task)

    async def _settle_unspawned(self, task: Task) -> None:
        await anyio.lowlevel.checkpoint()
        task.status = TaskStatus.KILLED
        self._settled(task)

    def _settled(self, task: Task) -> None:
        child = task.child
        if task.status is TaskStatus.RUNNING and child is not None:
            died = child.signal_name is not None
            task.status = TaskStatus.KILLED if died else TaskStatus.COMPLETED
        if child is not None:
            task.sandbox = self._facts(child, task.spec, background=True)
        # Stamped first, so that a listener already sees everything.
        task.done.set()
        if not task.task_id:
            return
        for listener in list(self._listeners):
            try:
                listener(task.info())
            except Exception:  # noqa: BLE001 - foreign code; the others must hear too
                _log.exception("a completion listener failed")

    def _begin_kill(self, task: Task) -> None:
        task.status = TaskStatus.KILLED
        if task.child is not None:
            self._group.start_soon(task.child.kill_tree, self._config.grace_ms / 1000)

    def _spawn_or_fail(self, spec: ExecSpec) -> Child:
        streams = self._streams(spec.stdout_max_bytes)
        try:
            return Child(self._argv(spec), spec, streams)
        except OSError as error:
            raise StartError(_spawn_failure(error)) from error

    def _argv(self, spec: ExecSpec) -> list[str]:
        command = ["bash", "-c", spec.command]
        mode = spec.sandbox_mode
        if self._confinement is None or mode is None or not mode.confines:
            return command
        return [*self._confinement.argv(spec, mode), *command]

    def _streams(self, stdout_bytes: int) -> tuple[Stream, Stream]:
        config = self._config
        return (
            Stream("stdout", self._folder, stdout_bytes, config.max_spill_bytes),
            Stream(
                "stderr",
                self._folder,
                config.max_output_bytes,
                config.max_spill_bytes,
            ),
        )

    def _facts(
        self, child: Child, spec: ExecSpec, *, background: bool
    ) -> SandboxFacts | None:
        mode = spec.sandbox_mode
        if mode is None or self._confinement is None:
            return None
        if not mode.confines:
            return None if background else SandboxFacts(mode=mode)
        stderr = child.streams[1].output().text
        denied = self._confinement.denied(child.exit_code, stderr)
        return SandboxFacts(
            mode=mode,
            denied=denied,
            verdict=Verdict.SUSPECTED if denied else Verdict.NONE,
            enforcement="full",
            runner="bwrap",
        )


def is_running(pid: int) -> bool:
    """Whether *pid* is a process that is not merely waiting to be reaped."""
    return _stat(pid)[0] not in ("", "Z", "X")


def _groups_of_living() -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and is_running(int(entry.name)):
            yield _stat(int(entry.name))[1]


def _stat(pid: int) -> tuple[str, int]:
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return "", 0
    return fields[0].decode(), int(fields[2])


def _refuse_aborted(abort: AbortSignal | None) -> None:
    if abort is not None and abort.aborted:
        raise AbortedError(f"command aborted before spawn: {abort.reason}")


def _spawn_failure(error: OSError) -> str:
    word = errno.errorcode.get(error.errno or 0, "")
    return f"spawn failed: Error: spawn bash {word}: {error.strerror}"
