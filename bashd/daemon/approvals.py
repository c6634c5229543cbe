"""Questions that wait for a person: asked over one connection, answered over another.

A question binds the exact command, folder, mode and session; its answer goes to the one
call that asked, once. Without a watcher nobody is there to ask, so the answer is
``unavailable`` at once; with one it is after ``[approval] wait_s``. Questions are
fenced by uid: a user's watcher sees that user's, root's own only root's.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field

import trio

from bashd.core.errors import InvalidParamsError, LimitError, UnknownApprovalError
from bashd.daemon.call import Call, Client, Handler
from bashd.daemon.sessions import Sessions
from bashd.protocol.messages import (
    ApprovalAsked,
    ApprovalAskParams,
    ApprovalDecideParams,
    ApprovalInfo,
    ApprovalList,
    ApprovalOutcome,
    ApprovalSettled,
    Empty,
)

ALLOWED_ONCE = "allowed-once"
REJECTED = "rejected"
CANCELLED = "cancelled"
UNAVAILABLE = "unavailable"
_ANSWERS = frozenset({ALLOWED_ONCE, REJECTED})
_PENDING_PER_USER = 100
"""More questions than a person will ever read; a loop that asks is refused."""
_BURST = 20
_PER_SECOND = 2.0
"""Questions a user's clients may raise: a burst, then a pace a person can follow."""


@dataclass(slots=True, eq=False)
class _Question:
    info: ApprovalInfo
    uid: int
    outcome: str | None = None
    settled: trio.Event = field(default_factory=trio.Event)

    def cancel(self) -> None:
        """The caller has withdrawn it."""
        self.settle(CANCELLED)

    def settle(self, outcome: str) -> bool:
        """Decide once; False when it had been."""
        if self.outcome is not None:
            return False
        self.outcome = outcome
        self.settled.set()
        return True


@dataclass(slots=True)
class _Bucket:
    tokens: float = float(_BURST)
    filled_at: float = field(default_factory=trio.current_time)

    def take(self) -> bool:
        now = trio.current_time()
        self.tokens = min(_BURST, self.tokens + (now - self.filled_at) * _PER_SECOND)
        self.filled_at = now
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True


class Approvals:
    """The daemon's queue of questions."""

    def __init__(self, sessions: Sessions, wait_s: float) -> None:
        self._sessions = sessions
        self._wait_s = wait_s
        self._pending: dict[str, _Question] = {}
        self._watchers: dict[int, list[Client]] = {}
        self._buckets: dict[int, _Bucket] = {}

    @property
    def pending(self) -> int:
        """How many questions wait for an answer."""
        return len(self._pending)

    def handlers(self) -> dict[str, Handler]:
        """Return method to handler."""
        return {
            "approval.ask": self._ask,
            "approval.list": self._list,
            "approval.decide": self._decide,
            "approval.watch": self._watch,
        }

    async def _ask(self, call: Call, params: ApprovalAskParams) -> ApprovalOutcome:
        uid = call.caller.uid
        session = self._sessions.find(uid, params.session_id)
        if session.approval == "never":
            return ApprovalOutcome(REJECTED)
        if not self._watchers.get(uid):
            return ApprovalOutcome(UNAVAILABLE)
        self._check_rate(uid)
        question = _Question(
            ApprovalInfo(
                approval_id="a-" + secrets.token_hex(6),
                session_id=session.session_id,
                call_id=params.call_id,
                tool_name=params.tool_name,
                command=params.command,
                workdir=params.workdir or session.cwd,
                mode=params.mode,
                reason=params.reason,
                asked_at=round(time.time(), 3),
            ),
            uid,
        )
        return ApprovalOutcome(await self._wait(call, question))

    def _check_rate(self, uid: int) -> None:
        pending = sum(question.uid == uid for question in self._pending.values())
        bucket = self._buckets.setdefault(uid, _Bucket())
        if pending >= _PENDING_PER_USER or not bucket.take():
            raise LimitError(
                "too many approval questions at once; answer or reject some first"
            )

    async def _wait(self, call: Call, question: _Question) -> str:
        approval_id = question.info.approval_id
        self._pending[approval_id] = question
        undo = call.abort.subscribe(question.cancel)
        try:
            for client in list(self._watchers.get(question.uid, ())):
                client.notify_nowait("approval.asked", ApprovalAsked(question.info))
            with trio.move_on_after(self._wait_s):
                await question.settled.wait()
            question.settle(UNAVAILABLE)
        finally:
            undo()
            del self._pending[approval_id]
        outcome = question.outcome or UNAVAILABLE
        for client in list(self._watchers.get(question.uid, ())):
            client.notify_nowait(
                "approval.settled", ApprovalSettled(approval_id, outcome)
            )
        return outcome

    async def _list(self, call: Call, _: Empty) -> ApprovalList:
        uid = call.caller.uid
        return ApprovalList(
            tuple(q.info for q in self._pending.values() if q.uid == uid)
        )

    async def _decide(self, call: Call, params: ApprovalDecideParams) -> Empty:
        if params.outcome not in _ANSWERS:
            raise InvalidParamsError(
                f'outcome must be "{ALLOWED_ONCE}" or "{REJECTED}"'
            )
        question = self._pending.get(params.approval_id)
        if (
            question is None
            or question.uid != call.caller.uid
            or not question.settle(params.outcome)
        ):
            raise UnknownApprovalError(
                f'no question "{params.approval_id}" is waiting; it may have been'
                " answered or withdrawn, list them with `bashd approvals`"
            )
        return Empty()

    async def _watch(self, call: Call, _: Empty) -> ApprovalList:
        uid, client = call.caller.uid, call.client
        watchers = self._watchers.setdefault(uid, [])
        if client not in watchers:
            watchers.append(client)

            def leave() -> None:
                watchers.remove(client)
                if not watchers:
                    self._watchers.pop(uid, None)
                    self._give_up(uid)

            client.closed.subscribe(leave)
        return await self._list(call, Empty())

    def _give_up(self, uid: int) -> None:
        """The last watcher has left: nobody is there to answer any more."""
        for question in list(self._pending.values()):
            if question.uid == uid:
                question.settle(UNAVAILABLE)
