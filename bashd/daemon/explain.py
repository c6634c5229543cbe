"""Handler of ``run.explain``: what refused a command, and what would allow it.

Puts together what was remembered of the command, what the kernel has said since, and
the policy it ran under, read anew: a file that has changed since shows as it is now.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from bashd.core.denial import decide
from bashd.core.errors import BashdError, InvalidParamsError
from bashd.core.hints import NETWORK_BLOCKED
from bashd.core.model import Denial, Mode, SandboxFacts
from bashd.core.policy import Policy
from bashd.core.policy_text import to_toml
from bashd.core.remedy import Remedy, Situation, combined, network_remedy, remedy
from bashd.daemon.identity import run_as
from bashd.daemon.real_path import real_path
from bashd.daemon.run_facts import Remembered, RunFacts
from bashd.protocol.messages import ExplainParams, ExplainResult, Explanation

if TYPE_CHECKING:
    from bashd.daemon.call import Call, Handler
    from bashd.daemon.evidence import Evidence
    from bashd.daemon.session import Session
    from bashd.daemon.sessions import Sessions
    from bashd.daemon.task import Task, TaskTable

ReadPolicy = Callable[["Session", str], Awaitable[Policy]]
"""Returns a policy with its paths as the files spell them."""

_BEYOND: Final = "; the administrator's ceiling forbids it: ask there"


@dataclass(frozen=True, slots=True)
class Explain:
    """See the module docstring."""

    sessions: Sessions
    tasks: TaskTable
    evidence: Evidence
    read_policy: ReadPolicy
    exceeds_ceiling: Callable[[Session, Remedy], bool]
    """Whether a policy of the session's user may not grant that."""
    own_folder: str
    """The daemon's state."""

    def handlers(self) -> dict[str, Handler]:
        """Return method to handler."""
        return {"run.explain": self._explain}

    async def _explain(self, call: Call, params: ExplainParams) -> ExplainResult:
        session, found, running = self._find(call.caller.uid, params.id)
        facts = self._up_to_date(found)
        situation = await self._situation(session, facts)
        denials = await run_as(
            session.identity,
            lambda: tuple(_canonical(denial) for denial in facts.sandbox.denials),
        )
        remedies = [remedy(denial, situation) for denial in denials]
        refusals = [
            self._explained(session, denial, one, situation)
            for denial, one in zip(denials, remedies, strict=True)
        ]
        if any(hint.startswith(NETWORK_BLOCKED) for hint in facts.sandbox.hints):
            remedies.append(network_remedy(situation))
            blocked = Denial(None, "connect", "policy")
            refusals.append(self._explained(session, blocked, remedies[-1], situation))
        return ExplainResult(
            run_id=facts.run_id,
            task_id=facts.task_id,
            session_id=None if session.anonymous else session.session_id,
            command=facts.command,
            workdir=facts.workdir,
            running=running,
            exit_code=facts.exit_code,
            signal=facts.signal,
            mode=facts.sandbox.mode,
            policy=facts.policy,
            runner=facts.sandbox.runner,
            verdict=str(facts.sandbox.verdict),
            refusals=tuple(refusals),
            hints=facts.sandbox.hints,
            writable=facts.writable,
            gaps=facts.gaps,
            env_removed=facts.env_removed,
            records="" if self.evidence.on else self.evidence.why_off,
            policy_toml=_policy_text(facts, tuple(remedies)),
        )

    def _find(self, uid: int, wanted: str | None) -> tuple[Session, Remembered, bool]:
        """Return a command of the user's, and whether it still runs."""
        mine = [s for s in self.sessions if s.identity.uid == uid and not s.closing]
        if wanted is None:
            latest = [(s, last) for s in mine if (last := s.history.last())]
            if latest:
                newest = max(latest, key=lambda pair: pair[1].facts.ended_at)
                return (*newest, False)
            raise InvalidParamsError("no command of yours has settled yet")
        task = self.tasks.find(uid, wanted)
        run_id = wanted if task is None else task.run_id
        for session in mine:
            if remembered := session.history.find(run_id):
                return session, remembered, False
        if task is not None:
            return task.session, _of_task(task), not task.settled
        raise InvalidParamsError(
            f'no run or task of yours is known as "{wanted}"; `bashd run --json` prints'
            " the run id, `bashd ps --all` the task ids, and only a session's latest"
            " runs are remembered"
        )

    def _up_to_date(self, found: Remembered) -> RunFacts:
        """Add what the kernel has said since the command settled."""
        facts = found.facts
        if found.trail is None:
            return facts
        recorded = self.evidence.recorded(found.trail)
        kept = {(d.path, d.operation) for d in facts.sandbox.denials}
        verdict, later = decide((), recorded, runner=facts.sandbox.runner)
        new = tuple(d for d in later if not _is_known(d, kept))
        if not new:
            return facts
        denials = (*facts.sandbox.denials, *new)
        sandbox = replace(facts.sandbox, denied=True, verdict=verdict, denials=denials)
        return replace(facts, sandbox=sandbox)

    async def _situation(self, session: Session, facts: RunFacts) -> Situation:
        mode = facts.sandbox.mode
        try:
            policy = await self.read_policy(session, facts.policy)
            if mode is not policy.mode:
                rules = await self.read_policy(session, str(mode))
                masked = dict.fromkeys((*policy.masked, *rules.masked))
                policy = replace(policy, masked=tuple(masked))
        except BashdError:
            # Its file is gone or wrong now; what is known of the cell stays true.
            policy = Policy(facts.policy, mode=mode, network=facts.network)
        return Situation(
            policy=policy,
            mode=mode,
            runner=facts.sandbox.runner,
            workspace=session.cwd,
            home=session.identity.home,
            masked=facts.masked,
            protected=facts.protected,
            writable=facts.writable,
            own=(self.own_folder,),
        )

    def _explained(
        self, session: Session, denial: Denial, one: Remedy, situation: Situation
    ) -> Explanation:
        note = one.note
        if one.grants and self.exceeds_ceiling(session, one):
            note += _BEYOND
        return Explanation(
            path=denial.path,
            operation=denial.operation,
            evidence=denial.evidence,
            process=denial.process,
            rule=one.rule,
            sources=situation.policy.sources.get(one.key, ()) if one.key else (),
            allow=one.line or None,
            note=note.lstrip("; "),
        )


def _of_task(task: Task) -> Remembered:
    """Return what is known of a task that is not in the history."""
    facts = task.sandbox or SandboxFacts(mode=task.mode)
    run = RunFacts(
        run_id=task.run_id,
        task_id=task.task_id,
        command=task.command,
        workdir=task.workdir,
        policy=task.session.policy or str(task.mode),
        ended_at=task.ended_at or 0.0,
        exit_code=task.exit_code,
        signal=task.signal,
        sandbox=facts,
    )
    return Remembered(run, task.trail)


def _is_known(denial: Denial, kept: set[tuple[str | None, str | None]]) -> bool:
    """Whether the kernel's word is one of those that stderr has named since."""
    if (denial.path, denial.operation) in kept:
        return True
    folder = denial.path or ""
    return folder.endswith("/") and any(
        path is not None and os.path.dirname(path) + "/" == folder  # noqa: PTH120
        for path, _ in kept
    )


def _canonical(denial: Denial) -> Denial:
    path = denial.path
    if path is None or not path.startswith("/"):
        return denial
    real = real_path(path)
    return replace(denial, path=real + "/" if path.endswith("/") else real)


def _policy_text(facts: RunFacts, remedies: tuple[Remedy, ...]) -> str | None:
    """Return a policy that would allow what was refused, to be reviewed and saved."""
    values = combined(remedies, facts.sandbox.mode)
    if not values or not Mode(facts.sandbox.mode).confines:
        return None
    why = dict.fromkeys(
        f"# {one.line}" + (f"  ({one.note})" if one.note else "")
        for one in remedies
        if one.grants
    )
    head = [
        f"# What run {facts.run_id} was refused under policy {facts.policy}, and the",
        "# least that would allow it. Review every line: nobody has approved this.",
        "# Save it as ~/.config/bashd/policies/NAME.toml and use it with --policy NAME.",
        "#",
        *(line.replace("\n", " ") for line in why),
    ]
    return "\n".join(head) + "\n\n" + to_toml(values)
