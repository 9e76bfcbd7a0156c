"""The section of the Kafka sink: what it takes, what it refuses in which words, what it hides."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from pydantic import SecretStr, ValidationError

from tailerd.config.explain import explain
from tailerd.registry import VALUE_FORMATS
from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.sinks.kafka.connection import Connection
from tailerd.sinks.kafka.producer_options import CONNECTION, ELSEWHERE, OPTIONS, SECRETS
from tailerd.sinks.topics.templates import TopicTemplate

SECTION = {"kind": "kafka", "bootstrap_servers": ["127.0.0.1:9092"], "topic": "changes"}


def config(**fields: Any) -> KafkaSinkConfig:
    return KafkaSinkConfig.model_validate({**SECTION, **fields})


def refusal(**fields: Any) -> str:
    with pytest.raises(ValidationError) as raised:
        config(**fields)
    return explain(raised.value, KafkaSinkConfig)


def test_three_fields_are_enough_and_the_defaults_keep_every_row() -> None:
    plain = config()
    assert (plain.delivery, plain.stores_offsets, plain.on_oversize) == (
        "at-least-once",
        False,
        "fail",
    )
    assert config(delivery="exactly-once").stores_offsets
    assert config(bootstrap_servers="a:1, b:2").bootstrap_servers == ["a:1", "b:2"]


REGISTRY = {"urls": ["http://127.0.0.1:8081"]}
REFUSED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "no broker": ({"bootstrap_servers": []}, ["bootstrap_servers", "at least 1"]),
    "a broker without port": ({"bootstrap_servers": ["broker"]}, ["host:port"]),
    "a placeholder misspelt": ({"topic": "{tabel}"}, ["{tabel}", "Did you mean `table`"]),
    "two columns for a topic": ({"topic": "{column:a}{column:b}"}, ["one column"]),
    "a topic's name": ({"topic": "a b"}, ["not a valid topic name"]),
    "a format": ({"format": "xml"}, ["write one of avro, cloudevents, debezium, json"]),
    "schemas without a registry": ({"format": "avro"}, ["avro need a schema_registry", "urls"]),
    "events of schemas without a registry": (
        {"format": "cloudevents", "cloudevents": {"data": "protobuf"}},
        ["protobuf need a schema_registry"],
    ),
    "events of events": (
        {"format": "cloudevents", "cloudevents": {"data": "cloudevents"}},
        ["write one of avro, debezium, json, json_schema, protobuf"],
    ),
    "an envelope of plain JSON": ({"envelope": "debezium"}, ["envelope is for avro"]),
    "subjects named after topics of a column": (
        {"format": "avro", "topic": "t.{column:c}", "schema_registry": REGISTRY},
        ["a column chooses the topic", "subject_strategy to record"],
    ),
    "incompatible rows without a place": (
        {
            "format": "avro",
            "schema_registry": {**REGISTRY, "on_incompatible_schema": "dead_letter"},
        },
        ["on_incompatible_schema is dead_letter", "name the dead_letter_topic"],
    ),
    "new topics without subjects of their own": (
        {
            "schema_registry": {
                **REGISTRY,
                "subject_strategy": "record",
                "on_incompatible_schema": "new_topic",
            },
        },
        ["choose another strategy"],
    ),
    "a registry that is no URL": ({"schema_registry": {"urls": ["registry"]}}, ["http://host"]),
    "a user in a URL": (
        {"schema_registry": {"urls": ["http://user:geheim@registry:8081"]}},
        ["set basic_auth"],
    ),
    "two kinds of credentials": (
        {
            "schema_registry": {
                **REGISTRY,
                "bearer_token": "geheim",
                "basic_auth": {"username": "a", "password": "geheim"},
            },
        },
        ["exclude each other"],
    ),
    "offset outside the transaction": (
        {"delivery": "exactly-once", "offsets": "state"},
        ["exactly-once", "set offsets to kafka"],
    ),
    "an id nobody uses": ({"transactional_id": "x"}, ["exactly-once"]),
    "dead letters without a place": ({"on_oversize": "dead-letter"}, ["dead_letter_topic"]),
    "changes of columns among the rows": (
        {"schema_change_topic": "changes"},
        ["is the topic of the rows", "changes.schema-changes"],
    ),
    "a partition below zero": ({"partition": -1}, ["a number from 0"]),
    "a partition by no column": ({"partition": {"colum": "x"}}, ["{column: NAME}"]),
    "a header's placeholder": ({"headers": {"v": "{version}"}}, ["commit_version"]),
    "an option misspelt": (
        {"producer": {"compresion_type": "zstd"}},
        ["no option compresion_type", "Did you mean `compression_type`"],
    ),
    "an option of the sink's": (
        {"producer": {"transactional_id": "x"}},
        ["not passed through", "`transactional_id` of the sink"],
    ),
    "weak acknowledgement": ({"producer": {"acks": 1}}, ["acks is 1", "needs all"]),
    "no idempotence": ({"producer": {"enable_idempotence": False}}, ["enable_idempotence"]),
    "no retries": ({"producer": {"retries": 0}}, ["retries is 0"]),
    "too many requests": (
        {"producer": {"max_in_flight_requests_per_connection": 6}},
        ["1 to 5"],
    ),
    "a number that is none": ({"producer": {"linger_ms": "soon"}}, ["whole number"]),
    "a switch that is none": ({"producer": {"ssl_check_hostname": "no"}}, ["true or false"]),
    "a word that is none": ({"producer": {"compression_type": "rar"}}, ["zstd"]),
    "options that are none": ({"producer": ["acks"]}, ["producer", "mapping"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_names_the_field_and_what_to_write(case: str) -> None:
    fields, parts = REFUSED[case]
    reported = refusal(**fields)
    assert [part for part in parts if part not in reported] == []
    assert "geheim" not in reported


def test_secrets_are_in_no_text_of_the_section_nor_of_its_errors() -> None:
    options = {"sasl_plain_password": "geheim", "ssl_password": "geheim"}
    section = config(producer=options)
    assert "geheim" not in f"{section!r}{section}{section.model_dump()}{section.model_dump_json()}"
    basic = {"username": "tailerd", "password": "geheim"}
    for given in ({"basic_auth": basic}, {"bearer_token": "geheim"}):
        known = config(format="avro", schema_registry={**REGISTRY, **given})
        assert "geheim" not in f"{known!r}{known}{known.model_dump()}{known.model_dump_json()}"
    assert "geheim" not in refusal(producer={**options, "acks": 0})
    assert "geheim" not in refusal(producer=options, on_oversize="dead-letter")
    assert "geheim" not in refusal(producer={"sasl_plain_password": ["geheim"]})


def test_a_section_that_was_checked_can_be_checked_again_with_its_secrets() -> None:
    section = config(producer={"sasl_plain_password": 1234, "linger_ms": "5"})
    again = KafkaSinkConfig.model_validate(section.model_dump(exclude_unset=True))
    password = again.producer["sasl_plain_password"]
    assert isinstance(password, SecretStr)
    assert password.get_secret_value() == "1234"
    assert again.producer["linger_ms"] == 5
    assert Connection(again).secrets == ("1234",)


def test_checking_a_section_loads_neither_the_client_nor_arrow() -> None:
    code = (
        "import sys; from tailerd.sinks.kafka.config import KafkaSinkConfig;"
        "print(sorted({m.split('.')[0] for m in sys.modules} & {'kafka', 'pyarrow', 'numpy'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_options_are_those_of_the_installed_client() -> None:
    client = set(KafkaProducer.DEFAULT_CONFIG)
    assert set(OPTIONS) | set(ELSEWHERE) == client
    assert not set(OPTIONS) & set(ELSEWHERE)
    assert set(KafkaConsumer.DEFAULT_CONFIG) >= CONNECTION
    assert set(KafkaAdminClient.DEFAULT_CONFIG) >= CONNECTION
    assert {name for name in OPTIONS if "password" in name} <= SECRETS


def test_every_value_format_can_be_chosen() -> None:
    sections = [config(format=name, schema_registry=REGISTRY) for name in VALUE_FORMATS]
    assert [section.format for section in sections] == list(VALUE_FORMATS)


def test_two_tables_cannot_have_one_transactional_id() -> None:
    one = config(delivery="exactly-once", transactional_id="x")
    assert one.location()
    assert config(delivery="exactly-once").location() == ""


def test_a_column_chooses_the_topic() -> None:
    template = TopicTemplate.parse("{table}.{column:region}")
    assert template.topic("orders", "eu") == "orders.eu"
    with pytest.raises(ValueError, match="not a valid topic name"):
        template.topic("orders", "a/b")
