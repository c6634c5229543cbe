"""From a request of a session to a command that runs in one of its cells.

What is decided here: mode and policy of the call, its environment, its cell; how often
a start is tried again; and what the ending meant. Nothing is tried again once the
spare has said that bash was started.
"""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import trio

from bashd.core.config import Config
from bashd.core.environment import Facts, choose_bashd_home, compose
from bashd.core.errors import AbortedError, RunnerFailedError, StartError
from bashd.core.metadata import Findings
from bashd.core.model import ExecSpec, Mode, Usage
from bashd.core.policy import Policy
from bashd.core.resolve import with_job_limit, with_wall_limit
from bashd.daemon import survey
from bashd.daemon.cell import Spare
from bashd.daemon.cells import LANDLOCK, Slot
from bashd.daemon.cgroup import Group
from bashd.daemon.evidence import Evidence, Trail
from bashd.daemon.identity import run_as
from bashd.daemon.job_time import JobTime, hint
from bashd.daemon.leftovers import Leftover
from bashd.daemon.metadata import Ticket
from bashd.daemon.output import StreamStore
from bashd.daemon.ready import Ready
from bashd.daemon.real_path import real_path
from bashd.daemon.run import TIMEOUT, Ended, Followers, Stop, drive
from bashd.daemon.runners import Runners, unavailable
from bashd.daemon.session import Session
from bashd.daemon.survey import Workdir
from bashd.daemon.terminal import Terminal
from bashd.daemon.tree import MARKER
from bashd.daemon.walls import NO_SURROUNDINGS, Surroundings, surroundings
from bashd.launcher import wire

_STARTS = 4
"""Tries to start a command: a spare may be killed by the session's other commands,
a cell may have lost a mount, and the fresh cell may meet the same once more."""
_ENVIRONMENT_ERRORS = frozenset({"mounts", "workdir-changed"})

_NOTHING_FOUND = Findings()

LoadPolicy = Callable[[Session, str | None, Mode | None], Awaitable[Policy]]
"""Session, policy name and mode of the call to the policy with absolute paths."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command with everything decided but its cell."""

    spec: ExecSpec
    mode: Mode
    policy: Policy
    runner: str | None
    environment: Ready
    run_id: str
    workdir: str | None
    """As the caller gave it, absolute; None is the session's folder."""
    stdin_fd: int | None = None
    asked_by: int = 0
    """Pid of the process that asked for it, as the kernel named it."""
    around: Surroundings = NO_SURROUNDINGS
    terminal: Terminal | None = None
    """What it gets instead of pipes."""
    has_timeout: bool = True
    """False where the spec's is only the default and does not apply."""
    job_ends: float = math.inf
    """When its job's time is over, by trio's clock: then at the latest it is ended."""

    def sooner(self, timeout_s: float | None) -> float | None:
        """Return *timeout_s*, or the seconds its job has left if those are fewer."""
        if math.isinf(self.job_ends):
            return timeout_s
        left_s = max(self.job_ends - trio.current_time(), 0.0)
        return left_s if timeout_s is None else min(timeout_s, left_s)

    def notes(self, ended: Ended) -> tuple[str, ...]:
        """Return what is to be said of its end besides what its output suggests."""
        if ended.cause != TIMEOUT or trio.current_time() < self.job_ends:
            return ()
        return (hint(self.policy.limits.job_s or 0),)


@dataclass(slots=True)
class Started:
    """A command handed to a spare."""

    spare: Spare
    slot: Slot
    workdir: Workdir
    trail: Trail | None = None
    """What the kernel records of it; None where that is not read."""
    ticket: Ticket | None = None
    """None where nothing protected can be written to."""
    findings: Findings = _NOTHING_FOUND
    """What the check of protected metadata came to."""


def _nobody(_session: Session, _command: Command) -> None:
    return


class Execution:
    """Starts commands and says what became of them."""

    def __init__(
        self,
        config: Config,
        runners: Runners,
        load_policy: LoadPolicy,
        evidence: Evidence,
        *,
        began: Callable[[Session, Command], None] = _nobody,
    ) -> None:
        self._config = config
        self._began = began
        self._evidence = evidence
        self._runners = runners
        self._load_policy = load_policy

    async def default_policy(self, session: Session) -> Policy:
        """Return the policy of a plain call: override, policy, then the configured."""
        return await self._load_policy(session, None, session.mode_override)

    async def prepare(
        self,
        session: Session,
        spec: ExecSpec,
        *,
        workdir: str | None,
        ambient: dict[str, str],
        already_removed: tuple[str, ...],
        asked_timeout_ms: float | None = None,
        stdin_fd: int | None = None,
        asked_by: int = 0,
    ) -> Command:
        """Decide mode, policy, time, runner and environment of a call.

        Raises:
            SandboxUnavailableError: Nothing can confine it.
            ConfigError: The policy's file is wrong.
            TimeOverError: Its job has no time left.
        """
        mode = spec.sandbox_mode or session.mode_override
        policy = await self._load_policy(session, spec.policy, mode)
        spec = with_wall_limit(spec, policy.limits.wall_s, asked_timeout_ms)
        job_ends = math.inf
        if policy.limits.job_s is not None:
            # Its first command builds a cell, and with that the clock is on record.
            clock = session.job_time if session.is_job else JobTime()
            left_s = clock.left(policy.limits.job_s)
            job_ends = trio.current_time() + left_s
            spec = with_job_limit(spec, left_s)
        runner = await self._runners.choose(policy.mode)
        run_id = secrets.token_hex(8)
        ready = self._environment(
            session, spec, policy, runner, ambient, already_removed
        )
        return Command(
            spec,
            policy.mode,
            policy,
            runner,
            ready,
            run_id,
            workdir,
            stdin_fd,
            asked_by=asked_by,
            around=surroundings(policy, ambient, session.identity),
            job_ends=job_ends,
        )

    def _environment(
        self,
        session: Session,
        spec: ExecSpec,
        policy: Policy,
        runner: str | None,
        ambient: dict[str, str],
        already_removed: tuple[str, ...],
    ) -> Ready:
        """Compose the environment; once per session for calls that add nothing."""
        plain = ambient is session.ambient and not spec.env and not spec.managed_env
        key = (policy.digest, runner)
        if plain:
            known = session.environments.get(key)
            if known is not None and known[0] is ambient:
                return known[1]
        if policy.home == "private" and runner == LANDLOCK:
            # Nothing can be mounted over the real one, which is only closed.
            ambient = {**ambient, "HOME": session.places.home_dir}
        composed = compose(
            ambient,
            facts=self._facts(session, policy, runner, ambient),
            rules=policy.environment,
            explicit=spec.env,
            managed=spec.managed_env,
            already_removed=already_removed,
        )
        plain = plain and ambient is session.ambient
        ready = Ready(
            tuple(os.fsencode(f"{k}={v}") for k, v in composed.env.items()),
            composed.removed,
        )
        if plain:
            session.environments[key] = (ambient, ready)
        return ready

    def _facts(
        self,
        session: Session,
        policy: Policy,
        runner: str | None,
        ambient: dict[str, str],
    ) -> Facts:
        identity, home = session.identity, ambient.get("HOME", "")
        in_place = policy.mode is Mode.DANGER_FULL_ACCESS or runner == LANDLOCK
        scratch = session.places.tmp_dir if in_place else "/tmp"  # noqa: S108 - cell's
        return Facts(
            home=identity.home,
            user=identity.name,
            bashd_home=choose_bashd_home(
                self._config.daemon.bashd_home,
                ambient.get("BASHD_HOME"),
                home=home if home.startswith("/") else identity.home,
                cwd=session.cwd,
            ),
            tmpdir=scratch,
            session_id=None if session.anonymous else session.session_id,
            session_log=None if session.anonymous else session.log.path,
        )

    async def start(
        self,
        session: Session,
        command: Command,
        announce: Callable[[Started], None] | None = None,
        stop: Stop | None = None,
    ) -> Started:
        """Find a cell and hand the command to one of its spares.

        Args:
            session: Whose cells.
            command: What to run.
            announce: For a task, called just before the command is handed over; its
                cell keeps it through a death of the daemon.
            stop: What may end it before it begins.

        Raises:
            AbortedError: It was to end before it began; nothing has run.
            StartError: The working folder is not usable.
            SandboxUnavailableError: The cell cannot be made.
        """
        for _ in range(_STARTS):
            slot = await self._obtain(session, command)
            with slot.cell.expecting():
                workdir = await self._workdir(session, command, slot)
                try:
                    spare = await slot.cell.take_spare()
                except RunnerFailedError:
                    session.cells.discard(slot.cell)
                    continue
            if stop is not None and stop.cause is not None:
                slot.cell.give_back(spare)
                raise AbortedError(f"aborted before spawn: {stop.cause}")
            trail = None
            if command.mode.confines:
                trail = self._evidence.begin(spare.pidfd, covered=slot.built.logged)
            started = Started(spare, slot, workdir, trail)
            if slot.guard is not None and slot.walls is not None:
                started.ticket = await slot.guard.begin(
                    slot.walls.survey, slot.walls.uncovered
                )
            if announce is not None:
                slot.cell.mark_task(spare)
                announce(started)
            try:
                self._send(started, command)
            except OSError:
                # Killed by a command of its own session; nothing has run.
                slot.cell.release(spare)
                continue
            self._began(session, command)
            return started
        raise unavailable(command.mode, "the cell keeps ending before a command starts")

    async def _obtain(self, session: Session, command: Command) -> Slot:
        try:
            return await session.cells.obtain(
                command.mode,
                command.runner,
                session.cwd,
                command.policy,
                around=command.around,
            )
        except RunnerFailedError as error:
            if command.mode.confines:
                raise unavailable(command.mode, error.message) from error
            raise

    async def _workdir(self, session: Session, command: Command, slot: Slot) -> Workdir:
        # A session's folder is canonical, and was looked at a moment ago.
        if command.mode.confines and command.workdir in (None, session.cwd):
            return slot.root
        path, walls = command.workdir, slot.walls

        def find() -> Workdir:
            if path is None:
                return survey.find_root(session.cwd)
            if walls is not None and command.runner != LANDLOCK:
                real = real_path(path)
                if walls.survey.found.is_own(real, session.places):
                    # The cell will see whether it has this one.
                    return Workdir(real, 0, 0)
            return survey.find_workdir(path)

        return await run_as(session.identity, find)

    def _send(self, started: Started, command: Command) -> None:
        spare, workdir = started.spare, started.workdir
        text = os.fsencode(command.spec.command)
        script = text if len(text) > wire.MAX_ARG_BYTES else None
        marker = MARKER + command.run_id.encode()
        request = wire.Request(
            command=b"" if script is not None else text,
            workdir=os.fsencode(workdir.path),
            workdir_dev=workdir.dev,
            workdir_ino=workdir.ino,
            has_stdin=command.stdin_fd is not None,
            has_script=script is not None,
            limits=started.slot.rlimits,
            environment=(*command.environment.entries, marker),
            terminal=None
            if command.terminal is None
            else (command.terminal.rows, command.terminal.columns),
        )
        spare.send(request, command.stdin_fd, script)

    async def run(
        self,
        session: Session,
        command: Command,
        started: Started,
        stdout: StreamStore,
        stderr: StreamStore,
        *,
        timeout_s: float | None,
        stop: Stop,
        on_progress: Callable[[], None] | None = None,
        followers: Followers = (None, None),
        announce: Callable[[Started], None] | None = None,
    ) -> tuple[Ended, Started]:
        """See a command through; starts it again where nothing of it had run.

        Raises:
            StartError: It could not be started; the step is named.
            RunnerFailedError: The cell broke under it.
        """
        for attempt in range(_STARTS):
            group = started.spare.group
            ended = await drive(
                started.spare,
                stdout,
                stderr,
                run_id=command.run_id,
                timeout_s=timeout_s,
                grace_s=self._config.executor.grace_ms / 1000,
                stop=stop,
                on_progress=on_progress,
                followers=followers,
                terminal=command.terminal,
            )
            await _check_metadata(started, group, command.run_id)
            outcome = started.spare.came_to
            if outcome is True or stop.cause is not None:
                return ended, started
            # Nothing ran, so there is no result to keep.
            started.spare.recorded.set()
            self._raise_unless_retry(session, started, outcome, command, attempt)
            if attempt + 1 < _STARTS:
                started = await self.start(session, command, announce, stop)
        raise unavailable(command.mode, "the command's process ends before it starts")

    def _raise_unless_retry(
        self,
        session: Session,
        started: Started,
        outcome: wire.Failed | bool,  # noqa: FBT001 - as `Spare.outcome` has it
        command: Command,
        attempt: int,
    ) -> None:
        if isinstance(outcome, bool):
            return
        if outcome.step == "workdir-changed" and attempt > 0:
            # A fresh cell would have had the host's, if it had been replaced there.
            raise StartError(
                f"cannot use the working folder {started.workdir.path}: EACCES: its"
                " policy hides it from commands"
            )
        if outcome.step in _ENVIRONMENT_ERRORS:
            session.cells.discard(started.slot.cell)
            return
        if outcome.step == "workdir":
            raise StartError(f"cannot use the working folder {outcome.reason}")
        if outcome.step == "exec":
            raise StartError(f"spawn failed: cannot execute bash: {outcome.reason}")
        raise RunnerFailedError(f"step {outcome.step} failed: {outcome.reason}")


async def _check_metadata(started: Started, group: Group | None, run_id: str) -> None:
    ticket, family = started.ticket, started.slot.family
    if ticket is None or family is None:
        return
    leftover = Leftover.look(family, group)
    started.findings += await ticket.settle(run_id, leftover)


def usage(ended: Ended) -> Usage:
    """Return what a command cost."""
    return Usage(ended.wall_ms, ended.cpu_ms, ended.max_rss_bytes, ended.oom_killed)


def stdin_pipe(uid: int) -> tuple[int, int]:
    """Return (read end, write end) of a pipe the peer can re-open as /dev/stdin."""
    read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
    if os.geteuid() == 0 and uid != 0:
        os.fchown(read_fd, uid, -1)
    os.set_blocking(write_fd, False)
    return read_fd, write_fd


async def feed(write_fd: int, pieces: trio.abc.ReceiveChannel[bytes]) -> None:
    """Write a command's stdin and close it; a command that does not read is no error."""
    try:
        async for piece in pieces:
            view = memoryview(piece)
            while view:
                await trio.lowlevel.wait_writable(write_fd)
                try:
                    view = view[os.write(write_fd, view[:65536]) :]
                except BlockingIOError:
                    continue
    except OSError:
        # EPIPE: it closed its end or ended. Its exit status is what counts.
        return
    finally:
        os.close(write_fd)
