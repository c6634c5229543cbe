"""G. Escalation and per-session mode.

The commands are real and confined by bubblewrap; whether a file exists afterwards is
what counts.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from bashd.core.abort import AbortSignal
from bashd.core.errors import InternalError, InvalidParamsError
from bashd.core.model import Mode
from bashd.tools.agent import Agent
from bashd.tools.approval import ApprovalRequest, ApprovalService
from bashd.tools.session import LoggedSession, MemoryLog, mode_event, policy_event
from bashd.tools.toolset import Call, ToolResult, Toolset
from tests.contract.world import Caller, HostFactory, World, local_host
from tests.support.scripted_executor import ScriptedExecutor

if TYPE_CHECKING:
    from pathlib import Path

    from bashd.tools.approval import Approver

pytestmark = pytest.mark.anyio

WRITE: dict[str, Any] = {
    "sandbox_permissions": "workspace-write",
    "justification": "Tests need it.",
}
FULL: dict[str, Any] = {
    "sandbox_permissions": "danger-full-access",
    "justification": "Needs all.",
}
DENIAL = "[sandbox: file access denied under read-only mode]"


@dataclass
class Person:
    """An answerer that keeps what it was asked."""

    answer: object = "allowed-once"
    asked: list[ApprovalRequest] = field(default_factory=list)

    def __call__(self, request: ApprovalRequest) -> object:
        self.asked.append(request)
        return self.answer

    def service(self) -> ApprovalService:
        service = ApprovalService()
        service.register(self)
        return service


@dataclass
class Scene:
    """A confined workspace, a session in it, and the tools."""

    world: World
    caller: Caller
    root: Path

    async def bash(self, command: str, **args: Any) -> ToolResult:
        return await self.world.bash(command, self.caller, **args)

    def exists(self, name: str) -> bool:
        return (self.root / name).exists()


OpenScene = Callable[..., AbstractAsyncContextManager[Scene]]


@pytest.fixture
def open_scene(executor_factory: HostFactory, workspace: Path) -> OpenScene:
    @asynccontextmanager
    async def scene(
        approvals: Approver | None = None,
        *,
        default: Mode = Mode.READ_ONLY,
        approval: str = "ask",
    ) -> AsyncGenerator[Scene]:
        async with executor_factory(
            root=str(workspace), cwd=str(workspace), sandbox_mode=default
        ) as host:
            world = World(host, approvals=approvals)
            caller = await world.session(cwd=str(workspace), approval=approval)
            yield Scene(world, caller, workspace)

    return scene


async def test_c107_nothing_to_escalate_without_a_sandbox() -> None:
    # In process only: no configuration takes a daemon's sandbox away.
    async with local_host() as host:
        world = World(host, approvals=Person().service())
        result = await world.bash("true", await world.session(), **WRITE)
    assert result.text == (
        "Error: sandbox_permissions is not available in this composition "
        "(no sandboxing executor to escalate)"
    )


async def test_c109_equal_is_not_wider(open_scene: OpenScene) -> None:
    person = Person()
    async with open_scene(person.service(), default=Mode.WORKSPACE_WRITE) as scene:
        result = await scene.bash("touch f", **WRITE)
        assert not scene.exists("f")
    assert result.text == (
        'Error: sandbox escalation to "workspace-write" is not strictly wider than '
        'this call\'s current "workspace-write" mode'
    )
    assert person.asked == []


async def test_c110_no_service(open_scene: OpenScene) -> None:
    async with open_scene() as scene:
        result = await scene.bash("touch f", **WRITE)
        assert not scene.exists("f")
    assert result.text == (
        'Error: sandbox escalation to "workspace-write" requires approval, but no '
        "approval service is composed"
    )


async def test_c111_no_session(open_scene: OpenScene) -> None:
    async with open_scene(Person().service()) as scene:
        result = await scene.world.bash("touch f", **WRITE)
        assert not scene.exists("f")
    assert result.text == (
        'Error: sandbox escalation to "workspace-write" requires approval, but the '
        "call has no agent to route it through"
    )


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        pytest.param(
            "rejected",
            'the user rejected escalating this command to "workspace-write"',
            id="c113",
        ),
        pytest.param(
            "cancelled",
            'approval for escalating to "workspace-write" was cancelled',
            id="c114",
        ),
        pytest.param(
            "unavailable",
            'sandbox escalation to "workspace-write" requires approval, but no '
            "approval channel is available",
            id="c112",
        ),
        pytest.param(
            "yolo",
            'sandbox escalation to "workspace-write" requires approval, but no '
            "approval channel is available",
            id="rogue-answer",
        ),
    ],
)
async def test_c112_to_c114_not_allowed(
    open_scene: OpenScene, answer: str, text: str
) -> None:
    async with open_scene(Person(answer).service()) as scene:
        result = await scene.bash("touch f", **WRITE)
        assert not scene.exists("f")
        decided = await scene.caller.events("approval/decided")
    assert result.text == f"Error: {text}"
    assert result.is_error
    assert len(decided) == 1


async def test_c112_service_without_an_answerer(open_scene: OpenScene) -> None:
    async with open_scene(ApprovalService()) as scene:
        result = await scene.bash("touch f", **WRITE)
    assert result.text.endswith(
        "requires approval, but no approval channel is available"
    )


async def test_c115_an_approver_that_answers_nonsense(open_scene: OpenScene) -> None:
    class Yolo:
        async def ask(self, request: ApprovalRequest) -> object:
            return "yolo"

    async with open_scene(Yolo()) as scene:
        result = await scene.bash("touch f", **WRITE)
        assert not scene.exists("f")
    assert result.is_error
    assert "unreachable" in result.text


async def test_c117_c119_c125_a_grant_is_for_one_call(open_scene: OpenScene) -> None:
    person = Person()
    async with open_scene(person.service()) as scene:
        denied = await scene.bash("touch f")
        assert DENIAL in denied.text
        assert person.asked == []
        granted = await scene.bash("touch f", **WRITE)
        assert granted.text == "(no output)"
        assert scene.exists("f")
        assert granted.structured is not None
        facts = granted.structured["sandbox"]
        assert isinstance(facts, dict)
        assert facts["mode"] == "workspace-write"
        again = await scene.bash("touch g")
        assert DENIAL in again.text
        assert not scene.exists("g")
        await scene.bash("touch f", **WRITE)
    assert len(person.asked) == 2


async def test_c118_the_marker_names_the_granted_mode(open_scene: OpenScene) -> None:
    async with open_scene(Person().service()) as scene:
        result = await scene.bash("touch ../outside", **WRITE)
    assert "[sandbox: file access denied under workspace-write mode]" in result.text
    assert result.text.endswith("[exit code: 1]")


async def test_c120_a_granted_background_start(open_scene: OpenScene) -> None:
    async with open_scene(Person().service()) as scene:
        world, caller = scene.world, scene.caller
        wide = await world.start("touch f", caller, **WRITE)
        narrow = await world.start("touch g", caller)
        for task_id in (wide, narrow):
            await world.settled(task_id, caller)
        texts = [(await world.output(t, caller)).text for t in (wide, narrow)]
        tasks = [await world.executor(caller).get(t) for t in (wide, narrow)]
        assert (scene.exists("f"), scene.exists("g")) == (True, False)
    assert texts[0] == "(no new output)\n[status: completed, exit code: 0]"
    assert f"[status: completed, exit code: 1]\n{DENIAL}\n" in texts[1]
    assert [t.sandbox.mode for t in tasks if t and t.sandbox] == [
        Mode.WORKSPACE_WRITE,
        Mode.READ_ONLY,
    ]


async def test_c121_what_the_question_carries(open_scene: OpenScene) -> None:
    person = Person("rejected")
    async with open_scene(person.service()) as scene:
        await scene.bash("touch f", call_id="call-7", **WRITE)
        asked = await scene.caller.events("approval/asked")
        decided = await scene.caller.events("approval/decided")
    (request,) = person.asked
    reason = "escalate sandbox to workspace-write: Tests need it."
    assert (request.tool_name, request.call_id, request.reason) == (
        "bash",
        "call-7",
        reason,
    )
    assert request.agent is scene.caller.agent
    assert "touch" not in repr(request)
    assert asked == [
        {
            "type": "approval/asked",
            "id": asked[0]["id"],
            "toolName": "bash",
            "callId": "call-7",
            "reason": reason,
        }
    ]
    assert decided == [
        {"type": "approval/decided", "id": asked[0]["id"], "outcome": "rejected"}
    ]


@pytest.mark.parametrize("first", [False, True])
async def test_c122_c123_policy_never_asks_nobody(
    open_scene: OpenScene, *, first: bool
) -> None:
    service, person = ApprovalService(), Person()
    async with open_scene(service, approval="never") as scene:
        service.register(person, first=first)
        result = await scene.bash("touch f", **WRITE)
        decided = await scene.caller.events("approval/decided")
        assert not scene.exists("f")
    assert result.text == (
        'Error: the user rejected escalating this command to "workspace-write"'
    )
    assert person.asked == []
    assert [event["outcome"] for event in decided] == ["rejected"]


async def test_c124_an_abort_cancels_the_question(open_scene: OpenScene) -> None:
    abort, asked = AbortSignal(), anyio.Event()

    async def deaf(_request: ApprovalRequest) -> str:
        asked.set()
        try:
            await anyio.sleep_forever()
        finally:
            # Swallows the cancellation and answers all the same, too late.
            return "allowed-once"  # noqa: B012

    service = ApprovalService()
    service.register(deaf)
    async with open_scene(service) as scene, anyio.create_task_group() as group:

        async def withdraw() -> None:
            await asked.wait()
            abort.abort()

        group.start_soon(withdraw)
        result = await scene.bash("touch f", abort=abort, **WRITE)
        assert result.text == (
            'Error: approval for escalating to "workspace-write" was cancelled'
        )
        decided = await scene.caller.events("approval/decided")
        assert [event["outcome"] for event in decided] == ["cancelled"]
        assert not scene.exists("f")


@pytest.mark.parametrize("background", [False, True])
async def test_c126_aborted_between_grant_and_start(
    open_scene: OpenScene, *, background: bool
) -> None:
    abort = AbortSignal()

    class GrantThenAbort:
        async def ask(self, request: ApprovalRequest) -> object:
            abort.abort()
            return "allowed-once"

    async with open_scene(GrantThenAbort()) as scene:
        result = await scene.bash(
            "touch f", abort=abort, run_in_background=background, **WRITE
        )
        assert await scene.world.executor(scene.caller).list() == []
        assert not scene.exists("f")
    assert result.is_error
    assert "aborted" in result.text


async def test_c127_an_override_is_the_sessions_alone(open_scene: OpenScene) -> None:
    async with open_scene() as scene:
        await scene.caller.switch(Mode.WORKSPACE_WRITE)
        landed = await scene.bash("touch f")
        assert landed.text == "(no output)"
        agentless = await scene.world.bash("touch g", workdir=str(scene.root))
        assert (scene.exists("f"), scene.exists("g")) == (True, False)
    assert DENIAL in agentless.text


async def test_c129_an_override_wider_than_what_is_asked(open_scene: OpenScene) -> None:
    person = Person()
    async with open_scene(person.service()) as scene:
        await scene.caller.switch(Mode.DANGER_FULL_ACCESS)
        result = await scene.bash("true", **WRITE)
    assert 'current "danger-full-access" mode' in result.text
    assert person.asked == []


async def test_c130_a_grant_wins_over_an_override(open_scene: OpenScene) -> None:
    async with open_scene(Person().service()) as scene:
        await scene.caller.switch(Mode.WORKSPACE_WRITE)
        outside = scene.root.parent / "outside"
        await scene.bash("touch ../outside", **FULL)
        assert outside.exists()
        outside.unlink()
        plain = await scene.bash("touch ../outside")
        assert not outside.exists()
    assert "denied under workspace-write mode" in plain.text


async def test_c131_nothing_is_stamped_without_a_sandbox() -> None:
    executor, toolset = ScriptedExecutor(), Toolset()
    toolset.mount(executor)
    log = MemoryLog([mode_event(Mode.DANGER_FULL_ACCESS)])
    agent = Agent("s", session=LoggedSession(log))
    args = {"command": "true", "description": "d"}
    await toolset.call("bash", args, Call(agent=agent))
    assert executor.requests[0].sandbox_mode is None


async def test_c132_a_switch_is_in_force_on_the_next_call(
    open_scene: OpenScene,
) -> None:
    async with open_scene() as scene:
        other = await scene.world.session(cwd=str(scene.root))
        assert DENIAL in (await scene.bash("touch f")).text
        await scene.caller.switch(Mode.WORKSPACE_WRITE)
        assert (await scene.bash("touch f")).text == "(no output)"
        assert DENIAL in (await scene.world.bash("touch g", other)).text
        await scene.caller.switch(None)
        assert DENIAL in (await scene.bash("touch h")).text


async def test_an_answerer_that_fails_is_nobody(
    open_scene: OpenScene, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_request: ApprovalRequest) -> str:
        raise RuntimeError("no display")

    service = ApprovalService()
    service.register(broken)
    async with open_scene(service) as scene:
        result = await scene.bash("touch f", **WRITE)
    assert "no approval channel is available" in result.text
    assert "no display" in caplog.text


async def test_the_next_answerer_is_tried_when_one_cannot_ask(
    open_scene: OpenScene,
) -> None:
    service, person = ApprovalService(), Person()
    service.register(lambda _request: None)
    service.register(person)
    async with open_scene(service) as scene:
        result = await scene.bash("touch f", **WRITE)
    assert result.text == "(no output)"
    assert len(person.asked) == 1


async def test_a_question_outside_a_call_is_refused_and_not_logged() -> None:
    log = MemoryLog()
    agent = Agent("s", session=LoggedSession(log))
    with pytest.raises(InternalError, match="outside a running call"):
        await Person().service().ask(ApprovalRequest(agent, "bash", "1", "why"))
    assert await log.events() == ()


async def test_a_cancelled_task_still_logs_how_the_question_ended() -> None:
    log, asked = MemoryLog(), anyio.Event()
    agent = Agent("s", session=LoggedSession(log))

    async def never_answers(_request: ApprovalRequest) -> None:
        asked.set()
        await anyio.sleep_forever()

    service = ApprovalService()
    service.register(never_answers)
    async with anyio.create_task_group() as group:
        with agent.call():
            group.start_soon(service.ask, ApprovalRequest(agent, "bash", "1", "why"))
            await asked.wait()
            group.cancel_scope.cancel()
    assert [event.get("outcome") for event in await log.events()] == [
        None,
        "cancelled",
    ]


def test_only_two_approval_policies() -> None:
    with pytest.raises(
        InvalidParamsError, match='approval policy must be one of "ask" or "never"'
    ):
        policy_event("always")
