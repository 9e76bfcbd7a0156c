"""Tables that others write into buckets, followed while they are written."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from tests.integration.daemon.running import daemon, read_log, run_to_end
from tests.integration.s3.configured import (
    STATIC_KEYS,
    all_that_is_shown,
    delivered,
    write_tables_config,
)
from tests.integration.s3.test_clones import Clone
from tests.maintenance.delta_spark import DeltaSpark
from tests.s3.proxy import Fault, FaultProxy
from tests.s3.servers import ACCESS_KEY, SECRET_KEY, S3Server
from tests.s3.upload import upload
from tests.tables.builder import TableBuilder
from tests.waiting import eventually

CHANGE_COLUMNS = ("_change_type", "_commit_version", "_commit_timestamp")
Rows = Counter[str]


class LakeTable:
    """A table that deltalake writes, with conditional puts, straight into a bucket."""

    def __init__(self, server: S3Server, *, has_feed: bool, name: str = "orders") -> None:
        self.location = f"s3://{server.new_bucket()}/lake/{name}"
        self._options = {
            **server.environment(),
            "AWS_ALLOW_HTTP": "true",
            "conditional_put": "etag",
        }
        self._feed = {"delta.enableChangeDataFeed": "true"} if has_feed else None
        self.append(range(10))

    def append(self, ids: Iterable[int]) -> None:
        deltalake.write_deltalake(
            self.location,
            _named(ids),
            mode="append",
            configuration=self._feed,
            storage_options=self._options,
        )

    @property
    def table(self) -> deltalake.DeltaTable:
        return deltalake.DeltaTable(self.location, storage_options=self._options)

    def live(self) -> Iterator[str]:
        """Do one thing after another; its name is yielded when it is done."""
        self.append(range(10, 15))
        yield "append"
        merged = self.table.merge(
            _named([3, 4, 100], "merged"), "t.id = s.id", source_alias="s", target_alias="t"
        )
        merged.when_matched_update_all().when_not_matched_insert_all().execute()
        yield "merge"
        self.table.delete("id >= 5 and id < 8")
        yield "delete"
        self.table.update(updates={"name": "'updated'"}, predicate="id = 12")
        yield "update"
        self.table.optimize.compact()
        yield "optimize"
        self.table.create_checkpoint()
        self.append([200])
        yield "append after a checkpoint"

    def vacuum(self) -> None:
        self.table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)

    def rows(self) -> Rows:
        return format_text(pa.table(self.table.to_pyarrow_table()).to_pylist())

    def feed(self) -> Rows:
        found = self.table.load_cdf(starting_version=0).read_all()
        return format_text(pa.table(found).to_pylist())


def _named(ids: Iterable[int], name: str = "n") -> pa.Table:
    return pa.table([(pa.array([*ids], pa.int64())), [f"{name}{i}" for i in ids]], ["id", "name"])


def format_text(rows: Iterable[Mapping[str, Any]]) -> Rows:
    """Return rows as they can be counted, without the commits' times."""
    return Counter(
        json.dumps({k: v for k, v in row.items() if k != "_commit_timestamp"}, sort_keys=True)
        for row in rows
    )


def replayed(changes: Iterable[Mapping[str, Any]]) -> Rows:
    """Return what a table holds after its changes."""
    rows: Rows = Counter()
    for change in changes:
        bare = {name: value for name, value in change.items() if name not in CHANGE_COLUMNS}
        sign = 1 if change["_change_type"] in ("insert", "update_postimage") else -1
        rows[json.dumps(bare, sort_keys=True)] += sign
    assert not -rows
    return +rows


@pytest.mark.full
@pytest.mark.parametrize("has_feed", [True, False], ids=["feed", "files"])
def test_what_deltalake_writes_is_delivered_while_it_writes(
    server: S3Server, tmp_path: Path, has_feed: bool
) -> None:
    lake = LakeTable(server, has_feed=has_feed)
    config = write_tables_config(tmp_path, server, {"orders": lake.location})
    with daemon(config):
        for done in lake.live():
            if done in ("delete", "append after a checkpoint"):
                expected = lake.rows()
                eventually(lambda: replayed(delivered(tmp_path, "orders")) == expected)  # noqa: B023
        if has_feed:
            assert format_text(delivered(tmp_path, "orders")) == lake.feed()
        lake.vacuum()
        lake.append([300])
        eventually(lambda: replayed(delivered(tmp_path, "orders")) == lake.rows())
    assert "error" not in {json.loads(line)["level"] for line in read_log(config).splitlines()}


@pytest.fixture
def failing(s3_versitygw: S3Server) -> Iterator[FaultProxy]:
    with FaultProxy(s3_versitygw.port) as proxy:
        proxy.fail_every(5, Fault.RESET)
        yield proxy


@pytest.mark.full
@pytest.mark.spark
@pytest.mark.slow
def test_spark_delivers_what_is_written_meanwhile_as_the_configuration_says(
    s3_versitygw: S3Server,
    s3_moto: S3Server,
    failing: FaultProxy,
    table: TableBuilder,
    tmp_path: Path,
) -> None:
    """Only the configuration knows the keys of this server, which checks them, and the other.

    Every fifth answer breaks off in the middle.
    """
    lake = LakeTable(s3_versitygw, has_feed=True)
    bucket = s3_versitygw.new_bucket()
    upload(s3_versitygw, table.log.parent, bucket, "orders")
    clone = Clone(s3_versitygw, s3_moto, tmp_path)
    clone.write("s3://{origin}/lake/orders/")
    locations = {"fed": lake.location, "built": f"s3://{bucket}/orders", "clone": clone.location}
    refused, wrong = s3_versitygw.new_bucket(), {**STATIC_KEYS, "secret_access_key": "unsayable"}
    config = write_tables_config(
        tmp_path,
        s3_versitygw,
        {**locations, "refused": f"s3://{refused}/orders"},
        endpoint=failing.endpoint,
        keys={**STATIC_KEYS, "buckets": {clone.origin: clone.account_there, refused: wrong}},
        options={"allowed_paths": [f"s3://{clone.origin}"]},
        engine="spark",
    )
    with daemon(config) as process:
        eventually(lambda: all(delivered(tmp_path, name) for name in locations))
        assert [*lake.live()]
        rows = lake.rows()
        eventually(lambda: replayed(delivered(tmp_path, "fed")) == rows)
        eventually(lambda: "does not accept the credentials" in read_log(config))
        shown = all_that_is_shown(config, process)
        assert SECRET_KEY not in shown
        assert "unsayable" not in shown
    assert format_text(delivered(tmp_path, "fed")) == lake.feed()
    assert replayed(delivered(tmp_path, "built")) == format_text(table.rows())
    assert len(delivered(tmp_path, "clone")) == 6


DELTA_SPARK = [
    "CREATE TABLE {t} (id BIGINT, name STRING) USING delta TBLPROPERTIES"
    " (delta.enableChangeDataFeed = true, delta.enableDeletionVectors = true)",
    "INSERT INTO {t} SELECT id, concat('n', id) FROM range(10)",
    "MERGE INTO {t} USING (SELECT id + 7 AS id, 'merged' AS name FROM range(6)) s ON {t}.id = s.id"
    " WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
    "DELETE FROM {t} WHERE id IN (3, 9)",
    "OPTIMIZE {t}",
]


@pytest.mark.full
@pytest.mark.spark
@pytest.mark.slow
def test_what_delta_spark_writes_is_delivered_while_it_writes_and_so_is_a_clone_elsewhere(
    delta_spark: DeltaSpark, s3_versitygw: S3Server, s3_moto: S3Server, tmp_path: Path
) -> None:
    location = f"s3://{bucket_for(delta_spark, s3_versitygw)}/lake/orders"
    cloned = f"s3://{bucket_for(delta_spark, s3_moto)}/clone"
    config = write_tables_config(tmp_path, s3_versitygw, {"orders": location})
    create, *more = (text.format(t=f"delta.`{location}`") for text in DELTA_SPARK)
    delta_spark.ask("sql", text=create)
    with daemon(config):
        for text in more:
            delta_spark.ask("sql", text=text)
        delta_spark.ask("checkpoint", path=location)
        delta_spark.ask("sql", text=f"INSERT INTO delta.`{location}` VALUES (200, 'last')")
        feed = {"readChangeFeed": "true", "startingVersion": "0"}
        reported = delta_spark.ask("rows", path=location, format="delta", options=feed)
        expected = format_text(json.loads(row) for row in reported)
        eventually(lambda: format_text(delivered(tmp_path, "orders")) == expected)
    delta_spark.ask("sql", text=f"CREATE TABLE delta.`{cloned}` SHALLOW CLONE delta.`{location}`")
    config = write_tables_config(
        tmp_path,
        s3_versitygw,
        {"clone": cloned},
        keys={**STATIC_KEYS, "buckets": {cloned.split("/")[2]: {"endpoint": s3_moto.endpoint}}},
        options={"allowed_paths": [location], "from": "snapshot"},
    )
    ran = run_to_end("run", "--config", config, "--once")
    assert ran.returncode == 0, ran.stderr
    clone = replayed(delivered(tmp_path, "clone"))
    assert clone == replayed(delivered(tmp_path, "orders")) != {}


def bucket_for(delta: DeltaSpark, server: S3Server) -> str:
    """Make a bucket that Delta Spark knows."""
    bucket = server.new_bucket()
    keys = {"key": ACCESS_KEY, "secret": SECRET_KEY}
    delta.ask("bucket", account={"bucket": bucket, "endpoint": server.endpoint, **keys})
    return bucket
