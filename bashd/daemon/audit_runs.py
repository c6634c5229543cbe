"""What the audit log says of commands: their start, their end, or why they never ran."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from bashd.core.model import SandboxFacts
    from bashd.daemon.audit_log import AuditLog
    from bashd.daemon.execution import Command
    from bashd.daemon.judgement import Case
    from bashd.daemon.session import Session

_TEXT_CHARS: Final = 16 * 1024
"""Kept of a command's text; its digest is of the whole."""

Fields = dict[str, object]


@dataclass(frozen=True, slots=True)
class RunEntries:
    """Tells the log of commands. Only references are taken while a command waits."""

    log: AuditLog
    command_text: bool = True
    """Whether commands are written out; their digest always is."""

    def began(self, session: Session, command: Command) -> None:
        """Take note of a command; it gets a line of its own if it runs for a while."""
        now = time.time()
        self.log.hold(command.run_id, lambda: self._start(now, session, command))

    def ended(self, case: Case, facts: SandboxFacts) -> None:
        """Log a command that has ended. A listener of the judge's."""
        now = time.time()
        self.log.let_go(case.run_id)
        self.log.put(lambda: self._end(now, case, facts))

    def failed(self, session: Session, run_id: str, command: str, why: str) -> None:
        """Log a command that never ran, or of whose end nothing is known."""
        now = time.time()
        self.log.let_go(run_id)
        self.log.put(
            lambda: {
                **_what(now, "failed", session, run_id),
                **self._text(command),
                "reason": why,
            }
        )

    def _text(self, command: str) -> Fields:
        raw = command.encode(errors="surrogateescape")
        fields: Fields = {"command_sha256": hashlib.sha256(raw).hexdigest()}
        if self.command_text:
            fields["command"] = command[:_TEXT_CHARS]
        return fields

    def _start(self, at: float, session: Session, command: Command) -> Fields:
        return {
            **_what(at, "start", session, command.run_id),
            **self._text(command.spec.command),
            "workdir": command.workdir or session.cwd,
            "mode": str(command.mode),
            "policy": command.policy.name,
            "runner": command.runner,
            "asked_by": command.asked_by,
        }

    def _end(self, at: float, case: Case, facts: SandboxFacts) -> Fields:
        ended, built = case.ended, case.built
        return {
            **_what(at, "run", case.session, case.run_id),
            "task_id": case.task_id,
            **self._text(case.command),
            "workdir": case.workdir,
            "mode": built.mode,
            "policy": built.policy,
            "runner": built.runner,
            "asked_by": case.asked_by,
            "exit_code": ended.exit_code,
            "signal": ended.signal,
            "ended_by": ended.cause,
            "runner_failed": facts.runner_failed,
            "verdict": str(facts.verdict),
            "denials": [
                [denial.operation, denial.path, denial.evidence, denial.process]
                for denial in facts.denials
            ],
            "wall_ms": ended.wall_ms,
            "cpu_ms": ended.cpu_ms,
            "max_rss_bytes": ended.max_rss_bytes,
            "oom_killed": ended.oom_killed,
            "stdout_bytes": case.stdout.total,
            "stderr_bytes": case.stderr.total,
        }


def _what(at: float, event: str, session: Session, run_id: str) -> Fields:
    return {
        "time": round(at, 3),
        "event": event,
        "run_id": run_id,
        "uid": session.identity.uid,
        "user": session.identity.name,
        "session": session.session_id,
    }
