"""Tool results as MCP sees them: text, facts, card, notices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from mcp_types import CallToolResult, ContentBlock, TextContent, Tool, ToolAnnotations

from bashd.tools.cards import present_call, present_result
from bashd.tools.schemas import BASH, BASH_KILL, BASH_OUTPUT, ToolSchema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bashd.tools.toolset import ToolResult

CARD_KEY: Final = "bashd/card"
"""Key in ``_meta``: how an interface may draw the call and its result."""
ERROR_KEY: Final = "bashd/error"
"""Key in ``_meta`` of a failure: its name and code."""

_ANNOTATIONS: Final = {
    BASH: ToolAnnotations(
        title="Run a bash command",
        read_only_hint=False,
        destructive_hint=True,
        idempotent_hint=False,
        open_world_hint=True,
    ),
    BASH_OUTPUT: ToolAnnotations(
        title="Read a background task",
        read_only_hint=True,
        destructive_hint=False,
        # Reading consumes: the same call again gives what came since.
        idempotent_hint=False,
        open_world_hint=False,
    ),
    BASH_KILL: ToolAnnotations(
        title="Kill a background task",
        read_only_hint=False,
        destructive_hint=True,
        idempotent_hint=True,
        open_world_hint=False,
    ),
}


def to_tool(schema: ToolSchema) -> Tool:
    """Return a tool as it is listed."""
    return Tool(
        name=schema.name,
        title=_ANNOTATIONS[schema.name].title,
        description=schema.description,
        input_schema=schema.parameters,
        annotations=_ANNOTATIONS[schema.name],
    )


def to_result(
    name: str, args: object, result: ToolResult, notices: Sequence[str]
) -> CallToolResult:
    """Return a tool's result; each notice is a block of its own after it."""
    text = encodable(result.text)
    content: list[ContentBlock] = [TextContent(type="text", text=text)]
    content += [TextContent(type="text", text=encodable(note)) for note in notices]
    meta: dict[str, Any] = {}
    card = _card(name, args, result)
    if card:
        meta[CARD_KEY] = card
    if result.code:
        meta[ERROR_KEY] = {"name": result.name, "code": result.code}
    return CallToolResult(
        content=content,
        structured_content=encodable_json(result.structured),
        is_error=result.is_error,
        _meta=meta or None,
    )


def encodable(text: str) -> str:
    """Return *text* with lone surrogates replaced: no JSON encoder takes those."""
    return text.encode("utf-8", "replace").decode("utf-8")


def encodable_json(value: object) -> object:
    """Return a JSON value whose texts are all encodable."""
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, list):
        return [encodable_json(item) for item in cast("list[object]", value)]
    if isinstance(value, dict):
        items = cast("dict[str, object]", value)
        return {encodable(key): encodable_json(item) for key, item in items.items()}
    return value


def _card(name: str, args: object, result: ToolResult) -> dict[str, object]:
    call = present_call(name, args)
    shown = present_result(
        name,
        args,
        [{"type": "text", "text": result.text}],
        is_error=result.is_error,
        detached=result.detached,
    )
    parts = {"call": call, "result": shown}
    return {
        key: encodable_json(part) for key, part in parts.items() if part is not None
    }
