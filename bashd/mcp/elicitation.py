"""Consent by way of the client: its own dialog, with no field to fill in.

Accept lets the command run once, decline refuses it, cancel leaves it undecided. A
handshake client is asked in the middle of the call. A 2026 client is answered with the
question instead and comes back with the same call and the answer.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import anyio
from mcp.shared.exceptions import MCPError
from mcp_types import (
    ClientCapabilities,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequiredResult,
    InputResponses,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from bashd.tools.approval import NOT_MINE, Outcome

if TYPE_CHECKING:
    from bashd.mcp.running import Context, RunningCall

_log = logging.getLogger(__name__)

NO_FIELDS: Final[dict[str, Any]] = {"type": "object", "properties": {}}
"""The requested schema: consent is the action itself."""
INPUT_KEY: Final = "consent"
"""Our key in the map of inputs a 2026 client is asked for."""

_OUTCOMES: Final = {
    "accept": Outcome.ALLOWED_ONCE,
    "decline": Outcome.REJECTED,
    "cancel": Outcome.CANCELLED,
}


async def ask_client(call: RunningCall, text: str, wait_s: float) -> Outcome | None:
    """Have the client of *call* ask its user.

    Args:
        call: The call that needs consent.
        text: What the user reads.
        wait_s: How long a 2026 client may take to come back with the answer.

    Returns:
        The outcome, or `NOT_MINE` for a client that cannot ask.
    """
    context = call.context
    if not can_elicit(context.session.client_capabilities):
        return NOT_MINE
    if context.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        return await _ask_in_call(context, text)
    with anyio.move_on_after(wait_s):
        return _outcome(await call.pose(text))
    return Outcome.UNAVAILABLE


def can_elicit(capabilities: ClientCapabilities | None) -> bool:
    """Say whether a client shows forms; one that only opens URLs does not."""
    if capabilities is None or capabilities.elicitation is None:
        return False
    modes = capabilities.elicitation
    # Before 2025-11 there were only forms and the capability was an empty object.
    return modes.form is not None or modes.url is None


def input_required(question: str, ticket: str) -> InputRequiredResult:
    """Return the answer to a request that makes a 2026 client ask *question*."""
    params = ElicitRequestFormParams(message=question, requested_schema=NO_FIELDS)
    return InputRequiredResult(
        input_requests={INPUT_KEY: ElicitRequest(params=params)},
        request_state=ticket,
    )


def answer_in(responses: InputResponses | None) -> object:
    """Return the answer to `input_required` in what a client came back with."""
    return (responses or {}).get(INPUT_KEY)


async def _ask_in_call(context: Context, text: str) -> Outcome | None:
    try:
        answer = await context.session.elicit_form(
            text, NO_FIELDS, related_request_id=context.request_id
        )
    except MCPError as error:
        # It said that it can, and cannot after all: the next answerer's turn.
        _log.warning("the client did not ask its user: %s", error)
        return NOT_MINE
    return _outcome(answer)


def _outcome(answer: object) -> Outcome:
    if isinstance(answer, ElicitResult):
        return _OUTCOMES[answer.action]
    # Came back without an answer, or with that to another question.
    return Outcome.CANCELLED
