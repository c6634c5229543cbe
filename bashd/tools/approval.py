"""Asking a person: one question, one of four outcomes, nothing stored.

`ApprovalService.ask` fails closed on every path. A session whose policy is ``never``
is answered before any answerer runs, so no order of registration gets around it. An
answerer that raises, or answers with anything but an outcome, counts as nobody there.
A caller that withdraws its call has cancelled the question at once; an answer that
comes later is thrown away.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Protocol
from uuid import uuid4

import anyio

from bashd.core.errors import InternalError
from bashd.tools.session import ASKED_EVENT, DECIDED_EVENT, ApprovalPolicy, Event

if TYPE_CHECKING:
    from bashd.core.abort import AbortSignal
    from bashd.tools.agent import Agent

_log = logging.getLogger(__name__)


class Outcome(StrEnum):
    """How a question ended."""

    ALLOWED_ONCE = "allowed-once"
    REJECTED = "rejected"
    CANCELLED = "cancelled"
    UNAVAILABLE = "unavailable"


NOT_MINE: Final = None
"""What an answerer returns when it cannot ask: the next one is tried."""


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """One question. It carries no arguments: who shows it looks the call up by id."""

    agent: Agent
    tool_name: str
    call_id: str
    reason: str
    abort: AbortSignal | None = None
    """Fires when the call that asks is withdrawn."""


Answerer = Callable[[ApprovalRequest], Awaitable[object] | object]
"""Puts the question to someone; answers with an `Outcome`'s word or `NOT_MINE`."""


class Approver(Protocol):
    """Whoever decides on an escalation: the service below, or a stand-in for it."""

    async def ask(self, request: ApprovalRequest) -> object:
        """Return one of the `Outcome` words; anything else is a bug of the approver."""
        ...


class ApprovalService:
    """Puts questions to the registered answerers, first registered first.

    Args:
        policy: Applies to sessions that have no policy of their own.
        new_id: Makes a fresh id for each question.
    """

    def __init__(
        self,
        *,
        policy: ApprovalPolicy = "ask",
        new_id: Callable[[], str] = lambda: uuid4().hex,
    ) -> None:
        self._policy: ApprovalPolicy = policy
        self._new_id = new_id
        self._answerers: list[Answerer] = []

    def register(
        self, answerer: Answerer, *, first: bool = False
    ) -> Callable[[], None]:
        """Add an answerer, after the others or before them; returns an undo."""
        self._answerers.insert(0 if first else len(self._answerers), answerer)

        def unregister() -> None:
            if answerer in self._answerers:
                self._answerers.remove(answerer)

        return unregister

    async def ask(self, request: ApprovalRequest) -> Outcome:
        """Ask and log both the question and its end.

        Raises:
            InternalError: No call of the agent is running, so nobody waits for the
                answer. Nothing is logged.
        """
        if not request.agent.in_call:
            raise InternalError("approval asked outside a running call")
        ask_id = self._new_id()
        await request.agent.session.record(_asked(ask_id, request))
        outcome = Outcome.CANCELLED
        try:
            outcome = await self._decide(request)
        finally:
            # Shielded: whoever cancels this task still gets a complete pair.
            with anyio.CancelScope(shield=True):
                await request.agent.session.record(
                    {"type": DECIDED_EVENT, "id": ask_id, "outcome": str(outcome)}
                )
        return outcome

    async def _decide(self, request: ApprovalRequest) -> Outcome:
        policy = await request.agent.session.approval_policy() or self._policy
        if policy == "never":
            return Outcome.REJECTED
        if request.abort is None:
            return await self._first_answer(request)
        if request.abort.aborted:
            return Outcome.CANCELLED
        with anyio.CancelScope() as scope:
            forget = request.abort.subscribe(scope.cancel)
            try:
                answer = await self._first_answer(request)
            finally:
                forget()
            # An answerer may swallow the cancellation; its answer is late all the same.
            return Outcome.CANCELLED if request.abort.aborted else answer
        return Outcome.CANCELLED

    async def _first_answer(self, request: ApprovalRequest) -> Outcome:
        for answerer in tuple(self._answerers):
            outcome = await _answer(answerer, request)
            if outcome is not None:
                return outcome
        return Outcome.UNAVAILABLE


async def _answer(answerer: Answerer, request: ApprovalRequest) -> Outcome | None:
    try:
        answer = answerer(request)
        if inspect.isawaitable(answer):
            answer = await answer
        return NOT_MINE if answer is NOT_MINE else Outcome(answer)
    except ValueError:
        _log.warning("an answerer gave an answer that is no outcome")
    # The one place that meets foreign answerers: whatever they raise means that
    # nobody answered, and must not become a grant or end the call's task.
    except Exception:  # noqa: BLE001 - see above
        _log.exception("an answerer failed")
    return Outcome.UNAVAILABLE


def _asked(ask_id: str, request: ApprovalRequest) -> Event:
    event: Event = {"type": ASKED_EVENT, "id": ask_id, "toolName": request.tool_name}
    if request.call_id:
        event["callId"] = request.call_id
    if request.reason:
        event["reason"] = request.reason
    return event
