"""Approvals through both clients: what they ask of the daemon, and what they hear."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from bashd.client import connect, connect_sync
from bashd.core.errors import UnknownApprovalError
from bashd.protocol.messages import ApprovalAsked, ApprovalSettled
from tests.unit.client.wire_server import task_info

if TYPE_CHECKING:
    from tests.unit.client.wire_server import Connection, WireServer

EARLY, WAITING, LATE = "a-early", "a-waiting", "a-late"


def question(approval_id: str) -> dict[str, Any]:
    return {
        "approval_id": approval_id,
        "session_id": "s1",
        "call_id": "1",
        "tool_name": "bash",
        "command": "true",
        "workdir": "/",
        "mode": None,
        "reason": "r",
        "asked_at": time.time(),
    }


@pytest.fixture
def answers(server: WireServer) -> WireServer:
    server.handlers["approval.list"] = lambda _c, _i, _p: {
        "approvals": [question(WAITING)]
    }
    server.handlers["approval.decide"] = lambda _c, _i, _p: {}
    return server


def test_blocking(answers: WireServer) -> None:
    with connect_sync(str(answers.path), cwd="/tmp") as client:
        assert [a.approval_id for a in client.approvals.list()] == [WAITING]
        client.approvals.approve("a-1")
        client.approvals.reject("a-2")
    assert answers.asked("approval.decide") == [
        {"approval_id": "a-1", "outcome": "allowed-once"},
        {"approval_id": "a-2", "outcome": "rejected"},
    ]


def test_an_answer_that_comes_too_late(answers: WireServer) -> None:
    def refuse(_c: Any, _i: Any, _p: Any) -> Any:
        raise UnknownApprovalError("no such question")

    answers.handlers["approval.decide"] = refuse
    with (
        connect_sync(str(answers.path), cwd="/tmp") as client,
        pytest.raises(UnknownApprovalError),
    ):
        client.approvals.approve("a-1")


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_watcher_hears_everything_once_and_in_order(
    answers: WireServer, backend: str
) -> None:
    watching: list[Connection] = []

    def watch(connection: Connection, _: Any, _params: Any) -> Any:
        watching.append(connection)
        # Overtakes the answer.
        connection.notify("approval.asked", {"approval": question(EARLY)})
        return {"approvals": [question(WAITING)]}

    answers.handlers["approval.watch"] = watch

    async def body() -> list[str]:
        heard: list[str] = []
        async with (
            connect(str(answers.path), cwd="/tmp") as client,
            client.approvals.watch() as events,
        ):
            (own,) = watching
            own.notify("approval.asked", {"approval": question(LATE)})
            settled = {"approval_id": LATE, "outcome": "rejected"}
            own.notify("approval.settled", settled)
            own.notify("task.done", {"task": task_info("bash-1")})
            async for event in events:
                if isinstance(event, ApprovalAsked):
                    heard.append(event.approval.approval_id)
                else:
                    assert event == ApprovalSettled(LATE, "rejected")
                    answers.drop_clients()
        return heard

    # That it ends at all is half of the claim: the daemon has gone.
    assert anyio.run(body, backend=backend) == [WAITING, EARLY, LATE]


def test_notices_are_taken_for_an_owner(server: WireServer) -> None:
    server.handlers["task.take_notices"] = lambda _c, _i, _p: {
        "tasks": [task_info("bash-1", status="completed", exit_code=0)]
    }
    with connect_sync(str(server.path), cwd="/tmp") as client:
        assert [task.task_id for task in client.take_notices()] == ["bash-1"]
        client.take_notices(owner="")
    own = client.session.session_id
    assert server.asked("task.take_notices") == [
        {"session_id": own, "owner": own},
        {"session_id": own, "owner": ""},
    ]
