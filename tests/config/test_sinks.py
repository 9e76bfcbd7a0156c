"""A table with several sinks: each is a pipeline, with the table's fields or its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tailerd.config import Config
from tailerd.config.discovery import with_tables_found
from tailerd.config.loading import parse_config
from tailerd.errors import ConfigError


def out(name: str) -> dict[str, Any]:
    return {"kind": "file", "path": f"/out/{name}"}


def parsed(environment: dict[str, str] | None = None, **table: Any) -> Config:
    orders = {"path": "/data/orders", "from": "snapshot", **table}
    content = {"engine": "arrow", "tables": {"orders": orders}}
    text = yaml.safe_dump(content, sort_keys=False)
    return parse_config(text, environment or {}, where="tailerd.yaml")


def test_each_sink_is_a_pipeline_with_the_fields_of_the_table_or_its_own() -> None:
    config = parsed(
        identity=["id"],
        where="a > 1",
        mask={"b": "null"},
        sinks={
            "eu": {"where": "region = 'EU'", "from": 7, "sink": out("eu")},
            "all": {"where": None, "mask": {}, "on_gap": "latest", "sink": out("all")},
        },
    )
    assert list(config.tables) == ["orders/eu", "orders/all"]
    eu, whole = config.tables.values()
    assert (eu.start, eu.where, eu.mask, eu.on_gap) == ("7", "region = 'EU'", {"b": "null"}, "stop")
    assert (whole.start, whole.where, whole.mask, whole.on_gap) == ("snapshot", None, {}, "latest")
    assert all(table.path == "/data/orders" for table in config.tables.values())
    assert all(table.identity == ["id"] and not table.sinks for table in config.tables.values())
    assert [table.sink.location() for table in config.tables.values()] == ["/out/eu", "/out/all"]


def test_a_table_is_maintained_once_whatever_the_number_of_its_sinks() -> None:
    config = parsed(
        sinks={"one": {"sink": out("one")}, "two": {"sink": out("two")}},
        maintenance={"checkpoint": {"every_commits": 5}},
    )
    maintained = [name for name, table in config.tables.items() if table.maintenance is not None]
    assert maintained == ["orders"]
    assert not config.tables["orders"].has_sink


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"sink": out("a"), "sinks": {"b": {"sink": out("b")}}}, "move the first below `sinks`"),
        ({"sinks": {"a b": {"sink": out("b")}}}, "not a valid name of a sink"),
        ({"sinks": {"a": {}}}, "tables.orders.sinks.a.sink is required"),
        ({"sinks": {"a": {"sink": {"kind": "fyle"}}}}, "tables.orders.sinks.a.sink.kind"),
        ({"sinks": {"a": {"wher": "x", "sink": out("a")}}}, "tables.orders.sinks.a.wher"),
        ({"sinks": {"a": {"engine": "arrow", "sink": out("a")}}}, "tables.orders.sinks.a.engine"),
        (
            {"sinks": {"a": {"sink": out("a")}, "b": {"sink": out("a")}}},
            "tables.orders.sinks.b and tables.orders.sinks.a both have the location",
        ),
        (
            {
                "from": "snapshot",
                "sinks": {"a": {"commits": {"skip": {"operations": ["X"]}}, "sink": out("a")}},
            },
            "tables.orders.sinks.a",
        ),
        ({"sinks": {}}, "tables.orders.sink is required"),
    ],
)
def test_a_mistake_names_the_section_of_its_sink(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=r"tailerd\.yaml:") as caught:
        parsed(**table)
    assert message in str(caught.value)


def test_the_environment_sets_a_field_of_a_sink() -> None:
    environment = {"TAILERD__TABLES__ORDERS__SINKS__EU__SINK__PATH": "/elsewhere"}
    config = parsed(environment, sinks={"eu": {"sink": out("eu")}})
    assert config.tables["orders/eu"].sink.location() == "/elsewhere"


def test_tables_of_a_pattern_have_the_sinks_of_its_template(tmp_path: Path) -> None:
    template = {
        "sinks": {"raw": {"sink": out("raw/{name}")}, "eu": {"sink": out("eu/{name}")}},
        "engine": "arrow",
    }
    text = yaml.safe_dump({"discover": {"lake": {"path": f"{tmp_path}/*", "template": template}}})
    config = parse_config(text, {}, where="tailerd.yaml")
    folders = {"lake": [f"{tmp_path}/orders", f"{tmp_path}/refunds"]}
    discovery = with_tables_found(config, folders)
    assert sorted(discovery.config.tables) == [
        "orders/eu",
        "orders/raw",
        "refunds/eu",
        "refunds/raw",
    ]
    assert discovery.config.tables["refunds/eu"].sink.location() == "/out/eu/refunds"
    assert set(discovery.found.values()) == {"lake"}


def test_sinks_of_a_template_must_tell_tables_apart() -> None:
    template = {"sinks": {"raw": {"sink": out("raw")}}}
    text = yaml.safe_dump({"discover": {"lake": {"path": "/lake/*", "template": template}}})
    with pytest.raises(ConfigError, match=r"Write \{name\} in it"):
        parse_config(text, {}, where="tailerd.yaml")
