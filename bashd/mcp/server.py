"""The MCP server: one client, one session, three tools.

Composition only: arguments and texts are `bashd.tools`', calls in flight `running`'s,
consent `elicitation`'s, notices `inbox`'s. Speaks both eras of the protocol, which the
SDK tells apart by the first request.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
from mcp.server.lowlevel import Server
from mcp.server.subscriptions import ListenHandler
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    CallToolRequestParams,
    CallToolResult,
    EmptyResult,
    InputRequiredResult,
    ListResourcesResult,
    ListToolsResult,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
    Resource,
    SetLevelRequestParams,
    TextResourceContents,
)

from bashd import __version__
from bashd.mcp.elicitation import answer_in, ask_client, input_required
from bashd.mcp.inbox import TASKS_URI, Inbox, NoticeQueue
from bashd.mcp.live import live_reports
from bashd.mcp.questions import ApprovalQueue, CallBook, queue_answerer
from bashd.mcp.results import encodable_json, to_result, to_tool
from bashd.mcp.running import Context, RunningCall, RunningCalls
from bashd.tools.agent import Agent, Agents, Inject
from bashd.tools.approval import ApprovalRequest, ApprovalService
from bashd.tools.facts import task_facts
from bashd.tools.js import compact_json
from bashd.tools.toolset import Call, ToolResult, Toolset

if TYPE_CHECKING:
    from mcp.server.context import CallNext, HandlerResult

    from bashd.core.executor import Executor, OutputSink
    from bashd.tools.hooks import Hook
    from bashd.tools.session import ApprovalPolicy

MakeAgent = Callable[[Inject], Agent]
"""Makes the session's agent, given where its notices go."""


@dataclass(frozen=True, slots=True)
class Composition:
    """What a server is made of."""

    executor: Executor
    make_agent: MakeAgent
    queue: ApprovalQueue | None = None
    """Asked when the client cannot ask its user; None where there is no such thing."""
    notices: NoticeQueue | None = None
    """Keeps what results must tell; None keeps it in this process."""
    hooks: Sequence[Hook] = ()
    approval_policy: ApprovalPolicy = "ask"
    """Of sessions without a policy of their own."""
    wait_s: float = 300
    """How long a question may stay open where the client has to come back for it."""
    foreground_limit_ms: float | None = None
    """Longer foreground commands go on in the background; None for no limit."""
    prompt_states_mode: bool = False


async def build_server(composition: Composition) -> Server[Any]:
    """Return a server for one client; serve it once."""
    return await _ToolServer(composition).build()


class _ToolServer:
    """The handlers and what they share."""

    def __init__(self, composition: Composition) -> None:
        self._composition: Final = composition
        self._inbox: Final = Inbox(composition.notices)
        self._book: Final = CallBook()
        self._calls: Final = RunningCalls(self._perform)
        self._agent: Final = composition.make_agent(self._inbox.put)
        self._agents: Final = Agents()
        self._toolset: Final = Toolset(
            agents=self._agents,
            approvals=self._approvals(),
            hooks=composition.hooks,
            prompt_states_mode=composition.prompt_states_mode,
        )

    async def build(self) -> Server[Any]:
        self._agents.add("client", self._agent)
        unmount = self._toolset.mount(self._composition.executor)
        sections = await self._toolset.prompt_sections(self._agent)
        server: Server[Any] = Server(
            "bashd",
            version=__version__,
            title="bashd",
            instructions="\n\n".join(section.text for section in sections),
            lifespan=partial(self._lifespan, unmount),
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_resources=self._list_resources,
            on_read_resource=self._read_resource,
            on_subscriptions_listen=ListenHandler(self._inbox.bus),
        )
        # By method name: the constructor's parameter warns that the 2026 protocol has
        # no such request, and handshake clients still send it.
        server.add_request_handler(
            "logging/setLevel", SetLevelRequestParams, self._set_level
        )
        server.middleware.append(self._meet)
        return server

    @asynccontextmanager
    async def _lifespan(
        self, unmount: Callable[[], None], _server: Server[Any]
    ) -> AsyncGenerator[None]:
        try:
            async with self._calls.open(), anyio.create_task_group() as group:
                group.start_soon(self._inbox.announce)
                yield
                group.cancel_scope.cancel()
        finally:
            self._agent.live = False
            unmount()

    async def _meet(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        if ctx.method != "initialize":
            # Before the answer to that, nothing may be sent.
            self._inbox.met(ctx.session)
        return await call_next(ctx)

    async def _list_tools(
        self, _context: Context, _params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        return ListToolsResult(
            tools=[to_tool(schema) for schema in self._toolset.schemas()]
        )

    async def _call_tool(
        self, context: Context, params: CallToolRequestParams
    ) -> CallToolResult | InputRequiredResult:
        call = self._call_for(context, params)
        try:
            await call.wait_stop()
        except anyio.get_cancelled_exc_class():
            call.abort.abort("the client cancelled the call")
            raise
        if call.question is not None:
            return input_required(call.question, self._calls.park(call))
        if call.result is None:
            raise MCPError(INTERNAL_ERROR, "the call failed; see the server's log")
        notices = await self._inbox.take()
        return to_result(call.name, call.arguments, call.result, notices)

    def _call_for(self, context: Context, params: CallToolRequestParams) -> RunningCall:
        name, arguments = params.name, params.arguments or {}
        if params.request_state is None:
            call = RunningCall(name, arguments, str(context.request_id), context)
            if self._calls.find(call.call_id) is not None:
                # Consent is asked for by the id of the call: it must be one call's.
                raise MCPError(INVALID_REQUEST, "this request id is still in use")
            self._calls.start(call)
            return call
        call = self._calls.unpark(params.request_state, name, arguments)
        if call is None:
            raise MCPError(INVALID_PARAMS, "Invalid or expired requestState")
        call.resume(answer_in(params.input_responses), context)
        return call

    async def _perform(self, call: RunningCall) -> ToolResult:
        with self._book.entry(call.call_id, call.arguments):
            if not _wants_progress(call.context):
                return await self._run_tool(call, None)

            async def report(seconds: float, text: str | None) -> None:
                # Looked up each time: a call may go on under another request.
                await call.context.session.report_progress(seconds, message=text)

            async with live_reports(report) as on_output:
                return await self._run_tool(call, on_output)

    async def _run_tool(
        self, call: RunningCall, on_output: OutputSink | None
    ) -> ToolResult:
        about = Call(
            agent=self._agent,
            call_id=call.call_id,
            abort=call.abort,
            on_output=on_output,
            foreground_limit_ms=self._composition.foreground_limit_ms,
        )
        return await self._toolset.call(call.name, call.arguments, about)

    def _approvals(self) -> ApprovalService:
        service = ApprovalService(policy=self._composition.approval_policy)
        service.register(self._ask_client)
        if self._composition.queue is not None:
            service.register(queue_answerer(self._composition.queue, self._book))
        return service

    async def _ask_client(self, request: ApprovalRequest) -> object:
        call = self._calls.find(request.call_id)
        question = self._book.question(request)
        if call is None or question is None:
            return None
        return await ask_client(call, question.text(), self._composition.wait_s)

    async def _set_level(
        self, _context: Context, params: SetLevelRequestParams
    ) -> EmptyResult:
        self._inbox.least_level = params.level
        return EmptyResult()

    async def _list_resources(
        self, _context: Context, _params: PaginatedRequestParams | None
    ) -> ListResourcesResult:
        tasks = Resource(
            uri=TASKS_URI,
            name="tasks",
            title="Background tasks",
            description="This session's background tasks, running and finished.",
            mime_type="application/json",
        )
        return ListResourcesResult(resources=[tasks])

    async def _read_resource(
        self, _context: Context, params: ReadResourceRequestParams
    ) -> ReadResourceResult:
        if str(params.uri) != TASKS_URI:
            raise MCPError(INVALID_PARAMS, f"there is no resource {params.uri}")
        mine = [
            encodable_json(task_facts(task))
            for task in await self._composition.executor.list()
            if task.owner == self._agent.session_id
        ]
        text = compact_json({"tasks": mine})
        contents = TextResourceContents(
            uri=TASKS_URI, mime_type="application/json", text=text
        )
        return ReadResourceResult(contents=[contents])


def _wants_progress(context: Context) -> bool:
    return (context.meta or {}).get("progress_token") is not None
