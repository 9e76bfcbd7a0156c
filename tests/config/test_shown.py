"""A configuration that is shown has no secret, wherever one was written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailerd.config import Config
from tailerd.config.maintenance import MaintenanceConfig
from tailerd.config.sections import TableConfig
from tailerd.config.shown import HIDDEN, shown_settings
from tailerd.config.values import format_size, parse_size

SECRET = "s3cr3t-of-the-test"
KAFKA: dict[str, Any] = {
    "kind": "kafka",
    "bootstrap_servers": ["127.0.0.1:9092"],
    "topic": "orders",
    "key": ["id"],
}


def config(**parts: Any) -> Config:
    sink = parts.pop("sink", {"kind": "console"})
    table = {"path": "/lake/orders", "sink": sink}
    return Config.model_validate({"engine": "arrow", "tables": {"orders": table}, **parts})


@pytest.mark.parametrize(
    "parts",
    [
        {"http": {"token": SECRET}},
        {"storage": {"access_key_id": "AKIA", "secret_access_key": SECRET}},
        {"spark": {"conf": {"spark.hadoop.fs.s3a.secret.key": SECRET}}},
        {"spark": {"conf": {"spark.jdbc": f"jdbc:x://h/db?user=u&password={SECRET}"}}},
        {"sink": KAFKA | {"producer": {"sasl_plain_password": SECRET}}},
        {"sink": KAFKA | {"headers": {"Api-Key": SECRET}}},
        {
            "engine": "spark",
            "sink": {
                "kind": "stream",
                "format": "jdbc",
                "options": {"url": f"jdbc:postgresql://u:{SECRET}@host/db", "dbtable": "t"},
            },
        },
    ],
    ids=lambda parts: json.dumps(parts)[:60],
)
def test_no_secret_is_shown_and_everything_else_is(parts: dict[str, Any]) -> None:
    made = config(**parts)
    shown = json.dumps(shown_settings(made))
    assert SECRET not in shown
    assert HIDDEN in shown
    assert "/lake/orders" in shown


def test_settings_that_are_no_secrets_stay_as_they_are() -> None:
    shown = shown_settings(config(sink=KAFKA, shutdown_timeout="30s"))
    assert shown["tables"]["orders"]["sink"]["key"] == ["id"]
    assert shown["shutdown_timeout"] == "30s"
    assert shown["memory"] == "256MiB"
    assert shown["tables"]["orders"]["max_bytes_per_batch"] == "256MiB"
    assert shown["http"]["read"] == "open"
    assert HIDDEN not in json.dumps(shown_settings(config(sink=KAFKA)))
    assert "tables" not in shown_settings(config(), without=frozenset({"tables"}))


@settings(max_examples=20, deadline=None)
@given(
    name=st.sampled_from(["password", "ssl.key.password", "client-secret", "fs.azure.account.key"]),
    value=st.text(min_size=12).filter(lambda text: text.strip("*")),
)
def test_whatever_stands_below_a_secret_name_is_hidden(name: str, value: str) -> None:
    shown = shown_settings(config(spark={"conf": {name: value}}))
    assert shown["spark"]["conf"] == {name: HIDDEN}


def test_literals_of_a_condition_are_hidden_if_values_are_masked() -> None:
    condition = "email = 'o''neil@x.org' and amount > 10.5 or a1 = 2"
    for mask, expected in (
        ({"email": "hash"}, "email = *** and amount > *** or a1 = ***"),
        ({}, condition),
    ):
        table = TableConfig(path="/x", where=condition, mask=mask, maintenance=MaintenanceConfig())
        assert shown_settings(table)["where"] == expected


@given(st.integers(0, 2**50) | st.integers(0, 2**20).map(lambda n: n * 2**20))
def test_a_size_that_is_shown_can_be_written_in_a_configuration(number: int) -> None:
    assert parse_size(format_size(number)) == number
