"""The printed schema covers the protocol and says what the fields mean."""

from __future__ import annotations

import json

from bashd.core.errors import ERROR_BY_CODE
from bashd.protocol.messages import METHODS, NOTIFICATIONS
from bashd.protocol.schema import wire_schema
from bashd.protocol.wire import is_array, is_object


def refs(value: object) -> set[str]:
    found: set[str] = set()
    if is_object(value):
        if "$ref" in value:
            found.add(value["$ref"])
        return found.union(*(refs(item) for item in value.values()))
    if is_array(value):
        return found.union(*(refs(item) for item in value))
    return found


def test_every_method_notification_and_error_is_described() -> None:
    schema = wire_schema()
    assert set(schema["methods"]) == set(METHODS)
    assert set(schema["notifications"]) == set(NOTIFICATIONS)
    assert {entry["data.code"] for entry in schema["errors"]} == set(ERROR_BY_CODE)
    for name, (params, result) in METHODS.items():
        entry = schema["methods"][name]
        assert entry["params"]["$ref"] == f"#/$defs/{params.__name__}"
        assert entry["result"]["$ref"] == f"#/$defs/{result.__name__}"
    assert json.loads(json.dumps(schema)) == schema


def test_every_reference_has_a_definition_and_every_definition_a_description() -> None:
    schema = wire_schema()
    named = {ref.removeprefix("#/$defs/") for ref in refs(schema)}
    assert named == set(schema["$defs"])
    for name, definition in schema["$defs"].items():
        # What dataclass() writes when nobody else does: "Name(field: type, …)".
        assert not definition.get("description", "").startswith(f"{name}("), name
        if definition.get("type") == "object":
            assert definition["description"], name


def test_fields_carry_the_strings_beneath_them() -> None:
    fields = wire_schema()["$defs"]["ExecParams"]["properties"]
    assert "default session" in fields["session_id"]["description"]
    assert "description" not in fields["command"]


def test_the_document_tells_how_to_speak() -> None:
    schema = wire_schema()
    assert "one JSON object a line" in schema["description"]
    assert schema["protocol"] == 1
