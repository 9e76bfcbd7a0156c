"""A `storage` section that Spark's queries were not started with is refused while they need it."""

from __future__ import annotations

import pytest

from tailerd.config import Config
from tailerd.daemon.pipelines import check_storage
from tailerd.errors import ConfigError
from tailerd.storage.stores import StoreSettings

STREAM = {"kind": "stream", "format": "noop"}


def _config(region: str, path: str = "s3://lake/orders", **fields: object) -> Config:
    tables = {"orders": {"path": path, "sink": STREAM}}
    return Config.model_validate({"tables": tables, "storage": {"region": region}, **fields})


def _settings(region: str) -> StoreSettings:
    return StoreSettings.from_config(_config(region).storage)


def test_another_storage_is_refused_while_a_table_in_a_bucket_has_a_stream() -> None:
    check_storage(_settings("one"), _config("one"))
    with pytest.raises(ConfigError, match=r"storage cannot .* \(orders\).* restart the daemon"):
        check_storage(_settings("one"), _config("two"))


def test_a_pattern_in_a_bucket_counts_as_tables() -> None:
    found = {"lake": {"path": "s3://lake/*", "template": {"sink": STREAM}}}
    with pytest.raises(ConfigError, match=r"\(lake\)"):
        check_storage(_settings("one"), _config("two", path="/lake/orders", discover=found))


def test_storage_may_change_where_spark_has_no_stream_of_a_table_in_a_bucket() -> None:
    check_storage(_settings("one"), _config("two", path="/lake/orders"))
    console = {"orders": {"path": "s3://lake/orders", "sink": {"kind": "console"}}}
    after = {"tables": console, "storage": {"region": "two"}, "engine": "spark"}
    check_storage(_settings("one"), Config.model_validate(after))
