"""What may look at a command before it runs, and stop it.

A hook sees the request and answers: let it pass, refuse it with a text, or have a
person asked. The first refusal wins; a hook that raises refuses. Text rules over
commands are habits, not walls: `rm` is one spelling of many, and the sandbox is what
holds.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from bashd.tools.consent import Caller, Question, require_consent
from bashd.tools.errors import internal, refused

if TYPE_CHECKING:
    from bashd.core.model import Mode

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HookRequest:
    """The command about to run, as a hook sees it."""

    command: str
    description: str
    workdir: str | None
    """Absolute, or relative to a directory only the executor knows."""
    background: bool
    mode: Mode | None
    """The wider mode the call asks for; None for a plain call."""
    session_id: str | None


@dataclass(frozen=True, slots=True)
class Allow:
    """Let the command pass to the next hook."""


@dataclass(frozen=True, slots=True)
class Deny:
    """Refuse it; the model reads *text*."""

    text: str


@dataclass(frozen=True, slots=True)
class Ask:
    """Have a person decide; the person reads *reason*."""

    reason: str


HookAnswer = Allow | Deny | Ask
Hook = Callable[[HookRequest], Awaitable[HookAnswer] | HookAnswer]


class CommandRule(Protocol):
    """One ``[[command]]`` entry of a policy."""

    @property
    def pattern(self) -> str:
        """Regular expression, searched anywhere in the command."""
        ...

    @property
    def action(self) -> str:
        """``allow``, ``ask`` or ``deny``."""
        ...

    @property
    def reason(self) -> str:
        """What the model or the person reads."""
        ...


async def run_hooks(
    hooks: Sequence[Hook], request: HookRequest, caller: Caller
) -> None:
    """Pass *request* through every hook, in order.

    Raises:
        ToolError: A hook refused, failed, or the person it asked did not allow.
    """
    for hook in hooks:
        answer = await _answer(hook, request)
        if isinstance(answer, Deny):
            raise refused(answer.text)
        if isinstance(answer, Ask):
            await require_consent(_question(answer.reason), caller)
        elif not isinstance(answer, Allow):
            raise internal(f"a pre-execute hook gave no answer: {answer!r}")


def judge_command(rules: Sequence[CommandRule], command: str) -> HookAnswer:
    """Return what a policy's list of rules says: the first match decides.

    Raises:
        re.error: A pattern is no regular expression.
    """
    for rule in rules:
        # `re` keeps what it has compiled, so no cache of our own.
        if re.search(rule.pattern, command):
            return _verdict(rule)
    return Allow()


def strictest(answers: Sequence[HookAnswer]) -> HookAnswer:
    """Return what several lists of rules say together.

    Each list has its say: one refusal is enough, and a question has all the reasons
    for it, so that a person is asked once.
    """
    for answer in answers:
        if isinstance(answer, Deny):
            return answer
    reasons = [answer.reason for answer in answers if isinstance(answer, Ask)]
    return Ask("; ".join(reasons)) if reasons else Allow()


def command_rules_hook(rules: Sequence[CommandRule]) -> Hook:
    """Return a hook that applies one list of rules; see `judge_command`."""
    return lambda request: judge_command(rules, request.command)


def _verdict(rule: CommandRule) -> HookAnswer:
    reason = rule.reason or f"the command matches the rule {rule.pattern!r}"
    if rule.action == "allow":
        return Allow()
    if rule.action == "ask":
        return Ask(reason)
    return Deny(f"command refused by policy: {reason}")


async def _answer(hook: Hook, request: HookRequest) -> object:
    try:
        answer = hook(request)
        if inspect.isawaitable(answer):
            return await answer
    # The one place that meets foreign hooks: one that cannot answer has not allowed.
    except Exception as error:
        _log.exception("a pre-execute hook failed")
        raise internal(f"a pre-execute hook failed: {error}") from error
    return answer


def _question(reason: str) -> Question:
    return Question(
        reason=f"run command: {reason}",
        subject="running this command",
        rejected="the user rejected running this command",
        cancelled="approval for running this command was cancelled",
    )
