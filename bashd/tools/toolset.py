"""The three tools over an executor: from a model's arguments to what it reads.

A call goes through arguments → hooks → escalation gate → executor → text, and every
failure on the way becomes a result with ``is_error``. The toolset knows no process
and no event loop: it awaits the executor and the approver, nothing else.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bashd.core.abort import AbortSignal
from bashd.core.errors import BashdError, UnknownTaskError
from bashd.core.model import ExecRequest, Mode, RunResult, SandboxFacts, TaskInfo
from bashd.tools import errors, facts, render
from bashd.tools.agent import Agent, AgentRegistry, Agents
from bashd.tools.consent import Caller
from bashd.tools.detach import DetachingExecutor
from bashd.tools.errors import ToolError
from bashd.tools.gate import grant_for
from bashd.tools.hooks import Hook, HookRequest, run_hooks
from bashd.tools.notices import watch
from bashd.tools.prompt import (
    APPROVALS_SECTION,
    BASH_SECTION,
    PromptSection,
    mode_section,
)
from bashd.tools.schemas import BASH, BASH_KILL, BASH_OUTPUT, ToolSchema, tool_schemas
from bashd.tools.validation import BashArgs, parse_bash_args, parse_task_args

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bashd.core.executor import Executor, OutputSink
    from bashd.tools.approval import Approver


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a call gives back."""

    text: str
    """The one text block the model reads; starts with ``Error: `` on a failure."""
    is_error: bool = False
    structured: dict[str, object] | None = None
    """The typed facts, JSON-ready."""
    name: str | None = None
    """Class name of a failure."""
    code: str | None = None
    """Stable word of a failure."""
    task_id: str | None = None
    """The background task this call started or read."""
    detached: bool = False
    """A foreground command that went on as *task_id*."""


@dataclass(frozen=True, slots=True)
class Call:
    """Everything about one call that is not its arguments."""

    agent: Agent | None = None
    call_id: str = ""
    abort: AbortSignal | None = None
    on_output: OutputSink | None = None
    """Receives live output of a foreground command."""
    foreground_limit_ms: float | None = None
    """Let a longer foreground command go on in the background; needs an executor that
    is a `DetachingExecutor`."""


class Toolset:
    """The tools, mounted on at most one executor at a time.

    Args:
        agents: The live agents, for completion notices.
        approvals: Decides on escalations; None where nobody can be asked.
        hooks: Look at every command before it runs.
        prompt_states_mode: Add a prompt section that states the effective mode.
    """

    def __init__(
        self,
        *,
        agents: AgentRegistry | None = None,
        approvals: Approver | None = None,
        hooks: Sequence[Hook] = (),
        prompt_states_mode: bool = False,
    ) -> None:
        self._agents = agents or Agents()
        self._approvals = approvals
        self._hooks = tuple(hooks)
        self._prompt_states_mode = prompt_states_mode
        self._stated: dict[str, Mode] = {}
        self._executor: Executor | None = None

    def mount(self, executor: Executor) -> Callable[[], None]:
        """Offer the tools over *executor*; returns what takes them away again."""
        unwatch = watch(executor, self._agents)
        self._executor = executor

        def unmount() -> None:
            unwatch()
            if self._executor is executor:
                self._executor = None

        return unmount

    def schemas(self) -> tuple[ToolSchema, ...]:
        """Return the tools as advertised; none without an executor."""
        if self._executor is None:
            return ()
        return tool_schemas(escalation=self._executor.sandbox_mode is not None)

    async def prompt_sections(
        self, agent: Agent | None = None
    ) -> tuple[PromptSection, ...]:
        """Return what the system prompt of *agent* says, in order."""
        if self._executor is None:
            return ()
        sections = [BASH_SECTION]
        default = self._executor.sandbox_mode
        if agent is None or default is None:
            return tuple(sections)
        if self._prompt_states_mode:
            mode = await agent.session.effective_mode(default)
            sections.append(mode_section(mode, self._stated.get(agent.session_id)))
            self._stated[agent.session_id] = mode
        if await agent.session.approval_policy() == "never":
            sections.append(APPROVALS_SECTION)
        return tuple(sections)

    async def call(
        self, name: str, args: object, call: Call | None = None
    ) -> ToolResult:
        """Run one tool call; failures come back as results, never as exceptions.

        Args:
            name: The tool.
            args: What the model sent.
            call: Who calls, and what goes with the call.
        """
        call = call or Call()
        try:
            if call.agent is None:
                return await self._dispatch(name, args, call)
            with call.agent.call():
                return await self._dispatch(name, args, call)
        except BashdError as error:
            return _failure(errors.from_executor(error))
        except ToolError as error:
            return _failure(error)

    async def _dispatch(self, name: str, args: object, call: Call) -> ToolResult:
        if self._executor is None or name not in (BASH, BASH_OUTPUT, BASH_KILL):
            raise errors.unknown_tool(name)
        if name == BASH:
            return await self._bash(self._executor, args, call)
        task_id = parse_task_args(args)
        await _check_owner(self._executor, task_id, call.agent)
        if name == BASH_OUTPUT:
            return await _bash_output(self._executor, task_id, call.agent)
        return await _bash_kill(self._executor, task_id)

    async def _bash(self, executor: Executor, raw: object, call: Call) -> ToolResult:
        default = executor.sandbox_mode
        args = parse_bash_args(raw, escalation=default is not None)
        workdir = _workdir(args.workdir, call.agent)
        caller = Caller(call.agent, call.call_id, call.abort, self._approvals)
        await run_hooks(self._hooks, _hook_request(args, workdir, call), caller)
        granted = await grant_for(args, caller, default)
        mode = granted or await _override(call.agent, default)
        _check_not_aborted(call.abort)
        request = ExecRequest(
            command=args.command,
            workdir=workdir,
            timeout_ms=args.timeout_ms,
            owner=_owner(args, call),
            sandbox_mode=mode,
        )
        if args.background:
            return await _start(executor, request, call)
        return await _run(executor, request, call)


async def _run(executor: Executor, request: ExecRequest, call: Call) -> ToolResult:
    spec = executor.resolve(request)
    limit_ms = call.foreground_limit_ms
    outcome: RunResult | TaskInfo
    if limit_ms is not None and isinstance(executor, DetachingExecutor):
        outcome = await executor.run_or_detach(
            spec, limit_ms=limit_ms, abort=call.abort, on_output=call.on_output
        )
    else:
        outcome = await executor.run(spec, abort=call.abort, on_output=call.on_output)
    if isinstance(outcome, TaskInfo):
        return ToolResult(
            render.render_detached(outcome.task_id, limit_ms or 0),
            structured={"task": facts.task_facts(outcome)},
            task_id=outcome.task_id,
            detached=True,
        )
    if outcome.aborted:
        raise errors.aborted()
    return ToolResult(
        render.render_run(
            outcome,
            escalation=executor.sandbox_mode is not None,
            writable=await _writable(outcome.sandbox, call.agent),
        ),
        structured=facts.run_facts(outcome),
    )


async def _start(executor: Executor, request: ExecRequest, call: Call) -> ToolResult:
    spec = executor.resolve(request)
    # The task outlives the call: it hears of an abort only until its id is known.
    until_started = AbortSignal()
    forget: Callable[[], None] = _nothing
    if call.abort is not None:
        reason = call.abort
        forget = reason.subscribe(lambda: until_started.abort(reason.reason))
    try:
        task = await executor.start(spec, abort=until_started)
    finally:
        forget()
    return ToolResult(
        render.render_started(task.task_id),
        structured={"task": facts.task_facts(task)},
        task_id=task.task_id,
    )


async def _bash_output(
    executor: Executor, task_id: str, agent: Agent | None
) -> ToolResult:
    read = await executor.read_output(task_id)
    if read is None:
        raise errors.unknown_task(task_id)
    return ToolResult(
        render.render_read(
            read,
            escalation=executor.sandbox_mode is not None,
            writable=await _writable(read.task.sandbox, agent),
        ),
        structured=facts.read_facts(read),
        task_id=task_id,
    )


async def _bash_kill(executor: Executor, task_id: str) -> ToolResult:
    try:
        killed = await executor.kill(task_id)
    except UnknownTaskError:
        raise errors.unknown_task(task_id) from None
    return ToolResult(
        render.render_kill(task_id, killed=killed),
        structured={"task_id": task_id, "killed": killed},
        task_id=task_id,
    )


async def _check_owner(executor: Executor, task_id: str, agent: Agent | None) -> None:
    owner = await executor.owner_of(task_id)
    token = None if agent is None else agent.session_id
    if owner is not None and owner != token:
        raise errors.foreign_task(task_id)


async def _override(agent: Agent | None, default: Mode | None) -> Mode | None:
    # Nothing is stamped where nothing would honour it, nor for a call without a
    # session to read it from.
    if agent is None or default is None:
        return None
    return await agent.session.mode_override()


def _check_not_aborted(abort: AbortSignal | None) -> None:
    if abort is not None and abort.aborted:
        raise errors.aborted(f"command aborted before spawn: {abort.reason}")


def _owner(args: BashArgs, call: Call) -> str | None:
    # A foreground run has no owner of its own, unless it may become a task.
    may_become_task = args.background or call.foreground_limit_ms is not None
    return call.agent.session_id if call.agent and may_become_task else None


def _workdir(asked: str | None, agent: Agent | None) -> str | None:
    cwd = agent.cwd if agent else None
    if not asked:
        return cwd
    # Joined, not normalised: `link/..` must land where chdir lands.
    return posixpath.join(cwd, asked) if cwd else asked


async def _writable(
    sandbox: SandboxFacts | None, agent: Agent | None
) -> Sequence[str] | None:
    if sandbox is None or agent is None or not any(d.path for d in sandbox.denials):
        return None
    return await agent.writable(sandbox.mode)


def _hook_request(args: BashArgs, workdir: str | None, call: Call) -> HookRequest:
    return HookRequest(
        command=args.command,
        description=args.description,
        workdir=workdir,
        background=args.background,
        mode=args.mode,
        session_id=call.agent.session_id if call.agent else None,
    )


def _failure(error: ToolError) -> ToolResult:
    return ToolResult(
        f"Error: {error.message}",
        is_error=True,
        structured=facts.error_facts(error.code, error.message),
        name=error.name,
        code=error.code,
    )


def _nothing() -> None:
    return None
