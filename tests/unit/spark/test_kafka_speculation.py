"""Tasks that Spark starts twice, and which tables they may write. Without Java and brokers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame

from tailerd.errors import ConfigError
from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.spark.kafka.group_sink import KafkaGroupSink
from tailerd.spark.kafka.grouping import check_speculation


def section(**fields: Any) -> KafkaSinkConfig:
    # Nobody listens there: whoever asked would hear that instead.
    brokers = {"kind": "kafka", "bootstrap_servers": "127.0.0.1:9"}
    return KafkaSinkConfig.model_validate({**brokers, "topic": "t", **fields})


def micro_batch(speculation: str) -> DataFrame:
    # A real SparkConf asks the Java of another test where one runs.
    conf = {"spark.speculation": speculation}
    context = SimpleNamespace(getConf=lambda: conf)
    return cast(DataFrame, SimpleNamespace(sparkSession=SimpleNamespace(sparkContext=context)))


@pytest.mark.parametrize("setting", ["true", "True", " TRUE "])
def test_however_it_is_written_speculation_is_refused_in_a_transaction(
    tmp_path: Path, setting: str
) -> None:
    sink = KafkaGroupSink(lambda: {"a": section(delivery="exactly-once")}, tmp_path, "g", str)
    with pytest.raises(ConfigError, match=r"spark\.speculation") as caught:
        sink.write(micro_batch(setting), 0)
    # At least once is no way out for tables whose records have a key.
    assert "at-least-once" not in str(caught.value)


def test_with_speculation_only_tables_without_a_key_are_written_at_least_once() -> None:
    sinks = {"keyed": section(key=["id"]), "plain": section()}
    faults = check_speculation("True", sinks)
    assert list(faults) == ["keyed"]
    assert "older records of a key of keyed" in str(faults["keyed"])
    for setting in ("", "false", "FALSE"):
        assert check_speculation(setting, sinks) == {}
