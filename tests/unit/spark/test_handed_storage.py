"""A `storage` section that Spark's Java does not have is refused while Spark needs it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tailerd.config import Config
from tailerd.errors import ConfigError
from tailerd.spark import handed_storage
from tailerd.spark.handed_storage import check_reload, hand_down_storage
from tailerd.storage.s3.settings import SETTINGS_VARIABLE, S3Settings, use_settings


@pytest.fixture(autouse=True)
def settings_of_others(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(handed_storage, "_handed", None)
    yield
    use_settings(None)
    os.environ.pop(SETTINGS_VARIABLE, None)


def _config(region: str, path: str = "s3://lake/orders", **fields: object) -> Config:
    tables = {"orders": {"path": path, "sink": {"kind": "console"}}}
    return Config.model_validate({"tables": tables, "storage": {"region": region}, **fields})


def _start_java(config: Config) -> None:
    use_settings(S3Settings.of_config(config.storage))
    hand_down_storage()


def test_another_storage_is_refused_while_a_table_in_a_bucket_is_on_spark() -> None:
    before, after = _config("one"), _config("two")
    _start_java(before)
    check_reload(before, before)
    with pytest.raises(ConfigError, match=r"storage cannot .* \(orders\).* restart the daemon"):
        check_reload(before, after)


def test_a_pattern_in_a_bucket_counts_as_tables() -> None:
    found = {"lake": {"path": "s3://lake/*", "template": {"sink": {"kind": "console"}}}}
    before = _config("one", path="/lake/orders", discover=found)
    _start_java(before)
    with pytest.raises(ConfigError, match=r"\(lake\)"):
        check_reload(before, _config("two", path="/lake/orders", discover=found))


def test_a_table_cannot_join_a_spark_that_was_started_with_another_storage() -> None:
    _start_java(_config("one", path="/lake/orders"))
    between = _config("two", path="/lake/orders")
    check_reload(_config("one", path="/lake/orders"), between)
    with pytest.raises(ConfigError, match="storage"):
        check_reload(between, _config("two"))


def test_storage_may_change_where_no_spark_needs_it() -> None:
    check_reload(_config("one"), _config("two"))
    _start_java(_config("one"))
    check_reload(_config("one"), _config("two", path="/lake/orders"))
    check_reload(_config("one"), _config("two", engine="arrow"))


def test_what_never_changes_is_refused_as_ever() -> None:
    with pytest.raises(ConfigError, match="state cannot change"):
        check_reload(_config("one"), _config("one", state="/elsewhere"))
