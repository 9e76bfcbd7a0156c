from __future__ import annotations

import json
from typing import Any

import pytest

from tailerd.formats.delta.protocol.schema import parse_schema
from tailerd.formats.delta.protocol.type_widening import widened_floats
from tests.tables import delta_schema
from tests.tables.delta_schema import array, field, map_of, struct

WIDENED: dict[str, Any] = {"delta.typeChanges": [{"fromType": "float", "toType": "double"}]}
GREW: dict[str, Any] = {"delta.typeChanges": [{"fromType": "integer", "toType": "double"}]}
BOTH: dict[str, Any] = {
    "delta.typeChanges": [*GREW["delta.typeChanges"], *WIDENED["delta.typeChanges"]]
}
DAMAGED: dict[str, Any] = {"delta.typeChanges": [None, {}, "float"]}


@pytest.mark.parametrize(
    ("column", "is_found"),
    [
        (field("x", "double"), False),
        (field("x", "double", **GREW), False),
        (field("x", "double", **WIDENED), True),
        (field("x", "double", **BOTH), True),
        (field("x", array("double"), **WIDENED), True),
        (field("x", struct(field("y", "double", **WIDENED))), True),
        (field("x", array(struct(field("y", "double", **WIDENED)))), True),
        (field("x", map_of(struct(field("y", "double", **WIDENED)), "string")), True),
        (field("x", map_of("string", map_of("string", struct(field("y", "double"))))), False),
        (field("x", "double", **DAMAGED), False),
    ],
)
def test_columns_that_had_floats_are_found_at_any_depth(
    column: dict[str, Any], is_found: bool
) -> None:
    schema = parse_schema(json.dumps(delta_schema.struct(field("other", "double"), column)))
    assert widened_floats(schema) == ({"x"} if is_found else set())
