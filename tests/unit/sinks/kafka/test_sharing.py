"""Tables that have one producer: which may, and which topics they must not mix."""

from __future__ import annotations

from typing import Any

import pytest

from tailerd.config import Config
from tailerd.errors import ConfigError
from tailerd.sinks.kafka.config import KafkaSinkConfig, mixed_topics


def sink(topic: str, **more: Any) -> dict[str, Any]:
    servers = {"bootstrap_servers": "127.0.0.1:9092", "delivery": "exactly-once"}
    return {"kind": "kafka", "topic": topic, **servers, **more}


def mixed(sinks: dict[str, dict[str, Any]]) -> dict[str, str]:
    return mixed_topics({n: KafkaSinkConfig.model_validate(each) for n, each in sinks.items()})


def configured(**fields: Any) -> Config:
    return Config(**fields)


LETTERS = {"on_oversize": "dead-letter", "dead_letter_topic": "dead.{table}"}


def test_rows_among_offsets_or_dead_letters_are_told() -> None:
    fine = {"a": sink("a", **LETTERS), "b": sink("rows.{table}"), "c": sink("x.{column:id}")}
    assert mixed(fine) == {}
    assert mixed({**fine, "d": sink("dead.a")}) == {"d": "dead.a"}
    assert mixed({**fine, "a.b": sink("{table}"), "dead.a": sink("{name}")}) == {"dead.a": "dead.a"}
    assert mixed({**fine, "e": sink("dead.{column:id}")}) == {"e": "dead.a"}
    assert mixed({"f": sink("__tailerd_offsets")}) == {"f": "__tailerd_offsets"}


def test_what_other_producers_write_is_not_told() -> None:
    letters = sink("a", **LETTERS)
    assert mixed({"a": letters, "d": sink("dead.a", delivery="at-least-once")}) == {}
    assert mixed({"a": letters, "d": sink("dead.a", bootstrap_servers="127.0.0.1:9093")}) == {}


def test_a_configuration_that_mixes_them_is_refused_where_tables_share_a_query() -> None:
    tables: Any = {"a": {"path": "/a", "sink": sink("a", **LETTERS)}}
    tables["d"] = {"path": "/d", "sink": sink("dead.a")}
    with pytest.raises(ConfigError, match=r"Rows of d go to the topic dead\.a.*Name another"):
        configured(tables=tables)
    configured(tables=tables, engine="arrow")


def test_tables_with_a_query_each_are_looked_at_one_by_one() -> None:
    alone: Any = {"tables_per_query": 1}
    tables: Any = {"a": {"path": "/a", "sink": sink("a", **LETTERS)}}
    tables["d"] = {"path": "/d", "sink": sink("dead.a")}
    assert list(configured(tables=tables, spark=alone).tables) == ["a", "d"]
    tables["e"] = {"path": "/e", "sink": sink("dead.e", **LETTERS)}
    with pytest.raises(ConfigError, match=r"Rows of e go to the topic dead\.e"):
        configured(tables=tables, spark=alone)
