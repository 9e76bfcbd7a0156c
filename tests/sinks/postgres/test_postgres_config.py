"""The section of the PostgreSQL sink: what it takes, what it refuses, what it hides."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from pydantic import ValidationError

from tailerd.config import Config
from tailerd.config.explain import explain
from tailerd.config.shown import shown_settings
from tailerd.sinks.postgres.config import PostgresSinkConfig, split_table

SECRET = "s3cr3t-of-the-test"
SECTION = {
    "kind": "postgres",
    "dsn": "postgresql://tailerd@db:5433/lake",
    "table": "orders",
    "mode": "upsert",
    "key": ["id"],
}


def refusal(**fields: Any) -> str:
    with pytest.raises(ValidationError) as raised:
        PostgresSinkConfig.model_validate({**SECTION, **fields})
    return explain(raised.value, PostgresSinkConfig)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"dsn": "host=db dbname=lake"}, "write postgresql://"),
        ({"dsn": "postgresql://tailerd@db"}, "name the database"),
        ({"table": "a.b.c"}, "SCHEMA.TABLE"),
        ({"table": "public." + "x" * 64}, "more than 63 bytes"),
        ({"key": []}, "mode upsert needs `key`"),
        ({"key": ["id", "id"]}, "named twice"),
        ({"mode": "append"}, "mode append has no `key`"),
        ({"mode": "append", "key": [], "deletes": "soft"}, "mode append has no `deletes`"),
        ({"deletes": "never"}, "hard"),
    ],
)
def test_a_mistake_is_named_with_its_field(fields: dict[str, Any], words: str) -> None:
    assert words in refusal(**fields)


@pytest.mark.parametrize(
    "dsn",
    [
        f"postgresql://tailerd:{SECRET}@db/lake",
        f"postgresql://tailerd@db/lake?password={SECRET}",
        f"postgresql://db/lake?sslpassword={SECRET}",
        f"host=db user=tailerd password={SECRET}",
    ],
)
def test_a_password_in_the_url_is_refused_and_not_repeated(dsn: str) -> None:
    text = refusal(dsn=dsn)
    assert "set `password`" in text or "write postgresql://" in text
    assert SECRET not in text


def test_the_password_is_shown_nowhere() -> None:
    sink = {**SECTION, "password": SECRET}
    tables = {"orders": {"path": "/lake/orders", "sink": sink}}
    config = Config.model_validate({"engine": "arrow", "tables": tables})
    shown = json.dumps(shown_settings(config)) + repr(config) + config.model_dump_json()
    assert SECRET not in shown
    assert "postgresql://tailerd@db:5433/lake" in shown


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("orders", ("public", "orders")),
        ("Lake.Orders", ("Lake", "Orders")),
        ('lake."a.b"', ("lake", "a.b")),
        ('"my lake"."say ""hi"""', ("my lake", 'say "hi"')),
    ],
)
def test_names_keep_their_case_and_may_be_quoted(text: str, names: tuple[str, str]) -> None:
    assert split_table(text) == names


def test_a_pipeline_is_the_same_on_another_host_and_two_hosts_are_two_locations() -> None:
    first = PostgresSinkConfig.model_validate(SECTION)
    other = PostgresSinkConfig.model_validate(
        {**SECTION, "dsn": "postgresql://u@/lake?host=/run/postgresql"}
    )
    assert first.identity_location() == other.identity_location() == "lake/public/orders"
    assert first.location() == "db:5433/lake/public/orders"
    assert other.location() == "/run/postgresql/lake/public/orders"


def test_a_configuration_is_checked_without_the_driver() -> None:
    program = "import sys, tailerd.sinks.postgres.config; print('psycopg' in sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "False"
