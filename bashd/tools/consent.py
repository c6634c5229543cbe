"""A person's consent to one call: asked for, or an error with its own text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bashd.tools.approval import ApprovalRequest, Approver, Outcome
from bashd.tools.errors import ToolError, internal, refused
from bashd.tools.schemas import BASH

if TYPE_CHECKING:
    from bashd.core.abort import AbortSignal
    from bashd.tools.agent import Agent


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a call, and whom to ask about it."""

    agent: Agent | None
    call_id: str
    abort: AbortSignal | None
    approvals: Approver | None


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked, and what the model reads when the answer is not yes."""

    reason: str
    """For the person."""
    subject: str
    """Opens the texts for a question that could not be asked."""
    rejected: str
    cancelled: str


async def require_consent(question: Question, caller: Caller) -> None:
    """Return if a person allowed this one call.

    Raises:
        ToolError: Nobody could be asked, or the answer was no.
    """
    needs = f"{question.subject} requires approval, but "
    if caller.approvals is None:
        raise refused(needs + "no approval service is composed")
    if caller.agent is None:
        raise refused(needs + "the call has no agent to route it through")
    outcome = await caller.approvals.ask(
        ApprovalRequest(
            agent=caller.agent,
            tool_name=BASH,
            call_id=caller.call_id,
            reason=question.reason,
            abort=caller.abort,
        )
    )
    if outcome != Outcome.ALLOWED_ONCE:
        raise _failure(outcome, question, needs)


def _failure(outcome: object, question: Question, needs: str) -> ToolError:
    if outcome == Outcome.REJECTED:
        return refused(question.rejected)
    if outcome == Outcome.CANCELLED:
        return refused(question.cancelled)
    if outcome == Outcome.UNAVAILABLE:
        return refused(needs + "no approval channel is available")
    return internal(f"unreachable variant of an approval outcome: {outcome!r}")
