"""Hooks see a command before it runs, and can stop it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from bashd.core.model import Mode
from bashd.tools.agent import Agent
from bashd.tools.approval import ApprovalRequest, ApprovalService
from bashd.tools.hooks import (
    Allow,
    Ask,
    Deny,
    Hook,
    HookAnswer,
    HookRequest,
    command_rules_hook,
    judge_command,
    strictest,
)
from bashd.tools.toolset import Call, ToolResult, Toolset
from tests.support.scripted_executor import ScriptedExecutor

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class Rule:
    pattern: str
    action: str
    reason: str = ""


async def run(
    *hooks: Hook, answer: str | None = None, **args: object
) -> tuple[ToolResult, ScriptedExecutor, list[ApprovalRequest]]:
    asked: list[ApprovalRequest] = []

    def person(request: ApprovalRequest) -> str | None:
        asked.append(request)
        return answer

    service = ApprovalService()
    service.register(person)
    executor = ScriptedExecutor(sandbox_mode=Mode.READ_ONLY)
    toolset = Toolset(approvals=service, hooks=hooks)
    toolset.mount(executor)
    result = await toolset.call(
        "bash",
        {"command": "git push", "description": "Push", **args},
        Call(agent=Agent("s", cwd="/ws")),
    )
    return result, executor, asked


async def test_a_hook_sees_what_is_about_to_run() -> None:
    seen: list[HookRequest] = []

    async def look(request: HookRequest) -> HookAnswer:
        seen.append(request)
        return Allow()

    result, executor, _ = await run(look, workdir="sub")
    assert not result.is_error
    assert len(executor.runs) == 1
    assert seen == [HookRequest("git push", "Push", "/ws/sub", False, None, "s")]


async def test_the_first_refusal_wins_before_anyone_is_asked() -> None:
    later: list[HookRequest] = []
    result, executor, asked = await run(
        lambda _request: Deny("not on a Friday"),
        lambda request: later.append(request) or Allow(),
        sandbox_permissions="workspace-write",
        justification="why",
    )
    assert result.text == "Error: not on a Friday"
    assert (result.is_error, result.code) == (True, "REFUSED")
    assert (executor.requests, asked, later) == ([], [], [])


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("rejected", "Error: the user rejected running this command"),
        ("cancelled", "Error: approval for running this command was cancelled"),
        (
            None,
            "Error: running this command requires approval, but no approval channel "
            "is available",
        ),
    ],
)
async def test_a_command_nobody_allowed_does_not_run(
    answer: str | None, text: str
) -> None:
    result, executor, asked = await run(lambda _r: Ask("it pushes"), answer=answer)
    assert result.text == text
    assert executor.requests == []
    assert [request.reason for request in asked] == ["run command: it pushes"]


async def test_a_command_somebody_allowed_runs() -> None:
    result, executor, _ = await run(lambda _r: Ask("it pushes"), answer="allowed-once")
    assert not result.is_error
    assert len(executor.runs) == 1


def broken(_request: HookRequest) -> HookAnswer:
    raise OSError("no rules file")


async def test_a_hook_that_fails_refuses() -> None:
    result, executor, _ = await run(broken)
    assert result.text == "Error: a pre-execute hook failed: no rules file"
    assert executor.requests == []


async def test_a_hook_that_gives_no_answer_refuses() -> None:
    result, executor, _ = await run(lambda _r: None)  # pyright: ignore[reportArgumentType]
    assert result.is_error
    assert executor.requests == []


async def test_the_first_matching_rule_decides() -> None:
    rules = [
        Rule(r"^git status", "allow"),
        Rule(r"\bgit push\b", "deny", "pushing is for people"),
        Rule(r"git", "allow"),
    ]
    result, executor, _ = await run(command_rules_hook(rules))
    assert result.text == "Error: command refused by policy: pushing is for people"
    assert executor.requests == []


async def test_a_rule_may_ask_and_no_match_allows() -> None:
    hook = command_rules_hook([Rule("push", "ask", "it pushes")])
    result, _, asked = await run(hook, answer="allowed-once")
    assert not result.is_error
    assert len(asked) == 1
    result, _, asked = await run(hook, command="ls")
    assert not result.is_error
    assert asked == []


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("ls", Allow()),
        ("git push", Ask("it publishes")),
        ("git push --force", Ask("it publishes; it rewrites")),
        ("git push; rm -rf /", Deny("command refused by policy: it deletes")),
    ],
)
def test_every_list_of_rules_has_its_say(command: str, answer: HookAnswer) -> None:
    lists = [
        [Rule("push", "ask", "it publishes")],
        # An allowance ends its own list only.
        [Rule("^ls", "allow"), Rule("rm", "deny", "it deletes")],
        [Rule("--force", "ask", "it rewrites")],
    ]
    assert strictest([judge_command(rules, command) for rules in lists]) == answer
