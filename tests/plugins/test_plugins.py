"""A sink and a value format of another distribution, on both engines."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
import yaml

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeSourceKind, ChangeType
from tailerd.changefeed.offset import Version
from tailerd.changefeed.row_positions import RowPositions
from tailerd.errors import ConfigError
from tailerd.records.base import FormatOptions, RecordPart, RecordSchema
from tailerd.registry import sink_kinds, value_format_names
from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.sinks.record_formats import TableRecords
from tests.plugins import EXAMPLE, example_is_installed
from tests.spark_session import require_java
from tests.tables.builder import TableBuilder
from tests.waiting import PATIENCE_SECONDS

TAILERD = [sys.executable, "-c", "from tailerd.cli import main; main()"]
ROOT = Path(__file__).resolve().parents[2]


def run_once(folder: Path, engine: str, format_name: str) -> list[str]:
    """Deliver a table's changes through the plug-in sink; return the lines that are there."""
    builder, out = TableBuilder(folder / "orders"), folder / "lines"
    builder.append([{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
    builder.append([{"id": 3, "name": "c"}])
    sink = {"kind": "append", "path": str(out), "format": format_name}
    settings = {
        "engine": engine,
        "state": str(folder / "state"),
        "spark": {"master": "local[2]"},
        "http": {"listen": "127.0.0.1:0"},
        "tables": {"orders": {"path": str(builder.folder), "from": "0", "sink": sink}},
    }
    config = folder / "tailerd.yaml"
    config.write_text(yaml.safe_dump(settings))
    done = subprocess.run(
        [*TAILERD, "run", "--config", str(config), "--once"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(EXAMPLE)},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return sorted(out.read_text().splitlines())


ENGINES = [
    "arrow",
    pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.slow]),
]
ROWS = ["0|insert|1|a", "0|insert|2|b", "0|insert|3|c"]


@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
def test_a_sink_and_a_value_format_of_others_deliver(tmp_path: Path, engine: str) -> None:
    if engine == "spark":
        require_java()
    assert run_once(tmp_path, engine, "piped") == ROWS


def batch(**columns: list[object]) -> ChangeBatch:
    return ChangeBatch(
        rows=pa.record_batch({name: pa.array(values) for name, values in columns.items()}),
        change_type=ChangeType.INSERT,
        version=Version(0),
        timestamp_us=0,
        change_source=ChangeSourceKind.FILES,
        positions=RowPositions(table_id="id-1", files=0, rows=0),
    )


@pytest.fixture
def installed() -> Iterator[None]:
    with example_is_installed():
        yield


@pytest.mark.usefixtures("installed")
def test_what_is_installed_is_known_by_its_name_and_can_be_configured() -> None:
    assert "append" in sink_kinds()
    assert "piped" in value_format_names()
    section = {"kind": "kafka", "bootstrap_servers": "127.0.0.1:9092", "topic": "t"}
    assert KafkaSinkConfig.model_validate({**section, "format": "piped"}).format == "piped"


@pytest.mark.usefixtures("installed")
def test_a_format_is_prepared_once_for_each_schema_with_the_ids_of_its_schemas() -> None:
    requested: list[RecordSchema] = []

    class Registry:
        def earlier(self, part: RecordPart, name: str) -> str:
            return ""

        def ids(self, schemas: Sequence[RecordSchema]) -> Sequence[int]:
            requested.extend(schemas)
            return [len(requested)]

    options = FormatOptions(name="n", table="orders", schemas=True)
    records = TableRecords("piped", options, Registry())
    values = [
        records.records(each).values.to_pylist()
        for each in (batch(id=[1]), batch(id=[2]), batch(id=[3], name=["c"]))
    ]
    assert values == [[b"1|insert|1"], [b"1|insert|2"], [b"2|insert|3|c"]]
    assert [schema.text for schema in requested] == ["id", "id|name"]


@pytest.mark.usefixtures("installed")
def test_a_format_with_schemas_in_a_registry_needs_one() -> None:
    records = TableRecords("piped", FormatOptions(name="n", table="orders", schemas=True))
    with pytest.raises(ConfigError, match="schema registry, and none is configured"):
        records.records(batch(id=[1]))
