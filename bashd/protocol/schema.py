"""The wire as JSON Schema, for clients in other languages and for `bashd schema`.

How the messages travel is told in `bashd.protocol.wire`, whose text is part of what
this prints; what they are comes from the dataclasses of `bashd.protocol.messages`, the
same that the daemon validates with. Field descriptions are the strings beneath the
fields in the source.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
from typing import Any

import msgspec

from bashd import __version__
from bashd.core import model
from bashd.core.errors import ERROR_BY_CODE
from bashd.protocol import messages, wire
from bashd.protocol.messages import METHODS, NOTIFICATIONS
from bashd.protocol.wire import MAX_FRAME_BYTES, PROTOCOL_VERSION

_REF = "#/$defs/{name}"


def wire_schema() -> dict[str, Any]:
    """Return the whole protocol as one JSON Schema document.

    ``methods`` and ``notifications`` refer into ``$defs``; ``errors`` lists every word
    that an error's ``data.code`` can be.
    """
    pairs = list(METHODS.items())
    types = [part for _, pair in pairs for part in pair] + list(NOTIFICATIONS.values())
    described = msgspec.json.schema_components(types, ref_template=_REF)
    # Through JSON, so that the defaults are JSON too: () becomes [].
    refs, components = msgspec.json.decode(msgspec.json.encode(described))
    split = 2 * len(pairs)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "bashd wire protocol",
        "description": inspect.getdoc(wire),
        "protocol": PROTOCOL_VERSION,
        "version": __version__,
        "max_frame_bytes": MAX_FRAME_BYTES,
        "methods": {
            name: {"params": params, "result": result}
            for (name, _), params, result in zip(
                pairs, refs[0:split:2], refs[1:split:2], strict=True
            )
        },
        "notifications": {
            name: {"params": params}
            for name, params in zip(NOTIFICATIONS, refs[split:], strict=True)
        },
        "errors": [
            {"data.code": code, "code": cls.rpc_code, "description": _summary(cls)}
            for code, cls in sorted(ERROR_BY_CODE.items())
        ],
        "$defs": _described(components),
    }


def _summary(cls: type) -> str:
    return (inspect.getdoc(cls) or "").split("\n\n")[0].replace("\n", " ")


def _described(components: dict[str, Any]) -> dict[str, Any]:
    classes = _dataclasses_by_name()
    for name, component in components.items():
        if name not in classes:
            continue
        properties = component.get("properties", {})
        for field, text in _field_docs(classes[name]).items():
            # A sibling of $ref is allowed since draft 2019-09.
            properties[field] = {**properties[field], "description": text}
    return components


def _dataclasses_by_name() -> dict[str, type]:
    return {
        name: member
        for module in (model, messages)
        for name, member in inspect.getmembers(module, inspect.isclass)
        if dataclasses.is_dataclass(member)
    }


def _field_docs(cls: type) -> dict[str, str]:
    """Return the strings beneath the fields of *cls*, by field name."""
    body = ast.parse(inspect.getsource(cls)).body[0]
    docs: dict[str, str] = {}
    if not isinstance(body, ast.ClassDef):
        return docs
    for field, below in itertools.pairwise(body.body):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                docs[name] = inspect.cleandoc(text).replace("\n", " ")
            case _:
                pass
    return docs
