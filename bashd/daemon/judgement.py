"""How a settled command was confined, what refused it anything, and what to know of it.

Three sources make the verdict: what stderr says, what the kernel recorded, and what
bashd itself keeps away (masks, sockets). A command that ended well and said nothing is
judged without looking at any of them for longer than it takes to see that they are
empty.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from bashd.core.confinement import is_below
from bashd.core.denial import classify, decide
from bashd.core.dialects import is_complaining
from bashd.core.hints import (
    credential_hint,
    network_hint,
    possible_sockets,
    socket_hint,
)
from bashd.core.metadata import Findings
from bashd.core.model import Denial, Mode, SandboxFacts, Verdict
from bashd.core.output import decode
from bashd.daemon.identity import run_as
from bashd.daemon.real_path import real_path
from bashd.daemon.run_facts import RunFacts

if TYPE_CHECKING:
    from bashd.daemon.cells import BuiltCell
    from bashd.daemon.evidence import Evidence, Trail
    from bashd.daemon.output import StreamStore
    from bashd.daemon.run import Ended
    from bashd.daemon.session import Session


_NOTHING_FOUND: Final = Findings()


@dataclass(frozen=True, slots=True)
class Case:
    """A settled command, as far as its judgement goes."""

    session: Session
    built: BuiltCell
    """Of the cell it ran in."""
    ended: Ended
    stdout: StreamStore
    stderr: StreamStore
    run_id: str
    command: str
    workdir: str
    env_removed: tuple[str, ...] = ()
    trail: Trail | None = None
    """None where the kernel's records were not read when it began."""
    findings: Findings = _NOTHING_FOUND
    """What the check of protected metadata came to."""
    task_id: str | None = None
    asked_by: int = 0
    """Pid of the process that asked for it; 0 where that is not known any more."""
    notes: tuple[str, ...] = ()
    """Hints that its output has nothing to do with."""


Listener = Callable[[Case, SandboxFacts], None]
FailureListener = Callable[["Session", str, str, str], None]
"""Gets session, run id, command and the reason."""


def _nobody(*_: object) -> None:
    return


@dataclass(frozen=True, slots=True)
class _Text:
    """What a failed command's stderr suggests."""

    denials: tuple[Denial, ...] = ()
    sockets: tuple[str, ...] = ()
    """Walled sockets it may have wanted to reach, canonical."""
    hints: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Judge:
    """Makes the sandbox facts of results and tasks."""

    evidence: Evidence
    listeners: list[Listener] = field(default_factory=list["Listener"])
    """Told of every judgement before anybody else is; they must not take time."""
    failed: FailureListener = _nobody
    """Told of commands that never came to a judgement."""

    async def facts(self, case: Case) -> SandboxFacts:
        """Say how a command was confined and whether that refused it anything."""
        facts = await self._judge(case)
        for listener in self.listeners:
            listener(case, facts)
        return facts

    async def _judge(self, case: Case) -> SandboxFacts:
        built, ended = case.built, case.ended
        mode = Mode(built.mode)
        if not mode.confines and not ended.exit_code:
            return SandboxFacts(mode=mode, hints=case.notes)
        enforcement = "partial" if built.gaps else "full"
        if mode.confines and ended.lost:
            return SandboxFacts(
                mode=mode,
                enforcement=enforcement,
                runner=built.runner,
                runner_failed=True,
            )
        text = _Text()
        if ended.exit_code and case.stderr.total:
            text = await _read(case)
        if not mode.confines:
            return SandboxFacts(mode=mode, hints=text.hints + case.notes)
        recorded = None
        if case.trail is not None:
            recorded = await self.evidence.settle(case.trail)
        verdict, denials = decide(text.denials, recorded, runner=built.runner)
        if text.sockets:
            # Nobody records a socket that is not there; stderr alone suggests it.
            denials += tuple(Denial(p, "connect", "policy") for p in text.sockets)
            verdict = verdict if verdict is Verdict.DENIED else Verdict.SUSPECTED
        if case.findings.denials:
            # Undone: the command believes that it succeeded.
            denials += case.findings.denials
            verdict = Verdict.DENIED
        return SandboxFacts(
            mode=mode,
            denied=verdict in (Verdict.DENIED, Verdict.SUSPECTED),
            verdict=verdict,
            enforcement=enforcement,
            runner=built.runner,
            denials=denials,
            hints=text.hints + case.findings.notes + case.notes,
        )


def remember(case: Case, facts: SandboxFacts) -> None:
    """Put a judged command into its session's history. A listener."""
    built = case.built
    run = RunFacts(
        run_id=case.run_id,
        command=case.command,
        workdir=case.workdir,
        policy=built.policy or built.mode,
        ended_at=time.time(),
        exit_code=case.ended.exit_code,
        signal=case.ended.signal,
        sandbox=facts,
        task_id=case.task_id,
        env_removed=case.env_removed,
        gaps=built.gaps,
        masked=built.masked,
        protected=built.protected,
        writable=built.writable,
        network=built.network,
    )
    case.session.history.add(run, case.trail)


async def _read(case: Case) -> _Text:
    """Read the stderr of a failed command."""
    stderr = decode(case.stderr.tail())
    hints = (
        network_hint(stderr, case.built.network),
        credential_hint(stderr, case.command, case.env_removed),
    )
    text = _Text(hints=tuple(filter(None, hints)))
    if case.built.runner is None:
        return text
    sockets = possible_sockets(stderr, case.command)
    if not sockets and not is_complaining(stderr):
        return text
    # Paths are named there, and only the caller's rights may look at them.
    return await run_as(
        case.session.identity, lambda: _look_at_paths(case, stderr, sockets, text)
    )


def _look_at_paths(
    case: Case, stderr: str, sockets: tuple[str, ...], text: _Text
) -> _Text:
    built, places = case.built, case.session.places
    _, denials = classify(
        exit_code=case.ended.exit_code,
        stderr=stderr,
        runner=built.runner,
        masked=(*built.masked, *places.hidden, *places.socket_files),
        visible=(*built.writable, places.output_dir),
        protected=built.protected,
        cwd=case.workdir,
        resolve=real_path,
    )
    real = dict.fromkeys(real_path(path) for path in sockets)
    walled = tuple(path for path in real if _is_walled(path, case))
    # One refusal, one entry: docker says "permission denied" and names its socket.
    denials = tuple(
        denial
        for denial in denials
        if denial.path is None or real_path(denial.path) not in walled
    )
    hints = (*text.hints, *(socket_hint(path) for path in walled))
    return _Text(denials, walled, hints)


_PRIVATE: Final = ("/run", "/tmp", "/var/tmp", "/dev")  # noqa: S108 - in the cell
"""Folders of the host that a cell under bwrap has its own of."""


def _is_walled(path: str, case: Case) -> bool:
    """Whether there is a socket on the host that the cell keeps away."""
    built = case.built
    if path in built.granted:
        return False
    if built.runner == "landlock":
        away = not built.unix_sockets
    else:
        own = is_below(path, case.session.cwd)
        away = not own and any(is_below(path, f) for f in (*_PRIVATE, *built.masked))
    if not away:
        return False
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    except OSError:
        return False
