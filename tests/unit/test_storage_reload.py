"""A `storage` section that Spark's queries were not started with is refused while they need it."""

from __future__ import annotations

import pytest

from tailerd.assembly import check_storage
from tailerd.config import Config
from tailerd.errors import ConfigError
from tailerd.storage.stores import StoreSettings


def _config(region: str, path: str = "s3://lake/orders", **fields: object) -> Config:
    tables = {"orders": {"path": path, "sink": {"kind": "console"}}}
    return Config.model_validate({"tables": tables, "storage": {"region": region}, **fields})


def _settings(region: str) -> StoreSettings:
    return StoreSettings.of_config(_config(region).storage)


def test_another_storage_is_refused_while_a_table_in_a_bucket_is_on_spark() -> None:
    check_storage(_settings("one"), _config("one"))
    with pytest.raises(ConfigError, match=r"storage cannot .* \(orders\).* restart the daemon"):
        check_storage(_settings("one"), _config("two"))


def test_a_pattern_in_a_bucket_counts_as_tables() -> None:
    found = {"lake": {"path": "s3://lake/*", "template": {"sink": {"kind": "console"}}}}
    with pytest.raises(ConfigError, match=r"\(lake\)"):
        check_storage(_settings("one"), _config("two", path="/lake/orders", discover=found))


@pytest.mark.parametrize("fields", [{"path": "/lake/orders"}, {"engine": "arrow"}])
def test_storage_may_change_where_spark_has_no_table_in_a_bucket(fields: dict[str, str]) -> None:
    check_storage(_settings("one"), _config("two", **fields))
