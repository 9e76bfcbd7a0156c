"""`tailerd maintain`: explains, does what is due, and says why it must not."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
import yaml

from tailerd.changefeed.change_task import ChangeMode
from tailerd.changefeed.offset import Offset, Version
from tailerd.changefeed.saved_offset import SavedOffset
from tests.cli.commands import Commands
from tests.doubles.owned_state import owned_state
from tests.formats.delta.log_bodies import add
from tests.maintenance.tables import hide, living_table
from tests.maintenance.test_cleanup import commits_of, daily
from tests.spark_session import require_java
from tests.tables.builder import TableBuilder


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Commands:
    """Runs `tailerd` in this process."""
    return Commands(capfd)


def configure(folder: Path, table: TableBuilder, **fields: object) -> Path:
    path = folder / "tailerd.yaml"
    content = {
        "engine": "arrow",
        "state": str(folder / "state"),
        "tables": {"orders": {"path": str(table.folder), **fields}},
    }
    path.write_text(yaml.safe_dump(content))
    return path


def names(table: TableBuilder) -> set[str]:
    return {str(path.relative_to(table.folder)) for path in table.folder.rglob("*")}


def test_it_explains_first_and_then_does_what_others_read(
    tmp_path: Path, command: Commands
) -> None:
    table = living_table(tmp_path)
    expected = sorted(row["id"] for row in table.rows())
    before = names(table)
    reported = command("maintain", tmp_path)
    assert reported.status == 0
    assert f"{table.version + 1} commits and no checkpoint yet reach the limit" in reported.output
    for words in ("checkpoint: due.", "costs: takes about", "saves: about", "--apply"):
        assert words in reported.output
    assert names(table) == before

    done = command("maintain", tmp_path, "--apply")
    assert done.status == 0
    assert f"Wrote a checkpoint of version {table.version}" in done.output
    for version in range(table.version):
        table.commit_path(version).unlink()
    rows = deltalake.DeltaTable(tmp_path).to_pyarrow_table().column("id").to_pylist()
    assert sorted(rows) == expected
    again = command("maintain", tmp_path, "--apply")
    assert (again.status, "due." in again.output) == (0, True)
    assert "checkpoint: not due. There is no commit since the newest" in again.output


def test_json_has_one_object_a_job_with_numbers(tmp_path: Path, command: Commands) -> None:
    table = living_table(tmp_path)
    rows = {row["job"]: row for row in command("maintain", tmp_path, "--json").rows}
    assert rows.keys() == {"checksum", "checkpoint", "log_compaction", "cleanup"}
    due = rows["checkpoint"]
    assert (due["is_due"], due["end_version"], due["version"]) == (True, *[table.version] * 2)
    assert due["cost_seconds"] > 0
    assert due["cost_bytes"] == sum(p.stat().st_size for p in table.log.glob("*.json"))
    assert due["saves_seconds"] > 0
    assert due["result"] is None
    rows = {row["job"]: row for row in command("maintain", tmp_path, "--apply", "--json").rows}
    assert rows["checkpoint"]["result"]["outcome"] == "written"
    assert rows["checkpoint"]["result"]["version"] == table.version


def test_the_tables_own_interval_decides_unless_the_policy_does(
    tmp_path: Path, command: Commands
) -> None:
    table = living_table(tmp_path / "table")
    table.change_metadata(properties={"delta.checkpointInterval": "50"})
    assert "and 50 make it due" in command("maintain", table.folder).output
    config = configure(tmp_path, table, maintenance={"checkpoint": {"every_commits": 3}})
    reported = command("maintain", "orders", "--config", config)
    assert "reach the limit of 3." in reported.output


def test_all_jobs_of_a_policy_are_done_in_one_go(tmp_path: Path, command: Commands) -> None:
    table = daily(tmp_path / "table")
    config = configure(
        tmp_path, table, maintenance={"checksum": True, "cleanup": {"enabled": True}}
    )
    done = command("maintain", "orders", "--config", config, "--apply", "--json")
    results = {row["job"]: row["result"] for row in done.rows}
    assert results["checkpoint"]["outcome"] == results["checksum"]["outcome"] == "written"
    # The checkpoint made it due: every commit of this table has long expired.
    assert results["cleanup"]["outcome"] == "deleted"
    assert commits_of(table) == [table.version]
    assert command("inspect", table.folder, "--json").status == 0


def test_a_pipeline_that_has_not_delivered_bounds_the_cleanup(
    tmp_path: Path, command: Commands
) -> None:
    table = daily(tmp_path / "table")
    table.checkpoint(5)
    config = configure(
        tmp_path,
        table,
        sink={"kind": "file", "path": str(tmp_path / "out")},
        maintenance={"checkpoint": {"every_commits": 1000}, "cleanup": {"enabled": True}},
    )
    held = command("maintain", "orders", "--config", config, "--apply")
    assert "cleanup: not due. orders has not delivered anything yet." in held.output
    assert commits_of(table)[0] == 0

    table.checkpoint(20)
    save_offset(tmp_path / "state", table, version=19)
    held = command("maintain", "orders", "--config", config, "--apply")
    assert "still needed by a pipeline" in held.output
    assert commits_of(table)[0] == 5

    save_offset(tmp_path / "state", table, version=21)
    command("maintain", "orders", "--config", config, "--apply")
    assert commits_of(table)[0] == 20


def save_offset(state: Path, table: TableBuilder, version: int) -> None:
    offset = Offset(table_id=table.table_id, version=Version(version))
    saved = SavedOffset(offset=offset, changes=ChangeMode.AUTO)
    asyncio.run(owned_state(state).offsets.save("orders", saved))


@pytest.mark.parametrize("feature", ["somethingNew", "catalogManaged"])
def test_a_log_that_must_be_left_alone_is_not_touched_and_says_why(
    tmp_path: Path, command: Commands, feature: str
) -> None:
    table = TableBuilder(tmp_path, reader_features=[], writer_features=[feature])
    table.create(add("a"))
    before = names(table)
    for options in ((), ("--apply",)):
        refused = command("maintain", tmp_path, *options)
        assert refused.status == 3
        assert refused.errors.startswith("error[unsupported_feature]: ")
        assert feature in refused.errors
    assert names(table) == before
    # Readers need the catalog too, even if the protocol lists it for writers only.
    assert command("history", tmp_path).status == (3 if feature == "catalogManaged" else 0)


def test_a_cleanup_younger_than_the_tables_retention_is_refused(
    tmp_path: Path, command: Commands
) -> None:
    table = daily(tmp_path / "table")
    config = configure(
        tmp_path, table, maintenance={"cleanup": {"enabled": True, "older_than": "1d"}}
    )
    refused = command("maintain", "orders", "--config", config, "--apply")
    assert refused.status == 2
    assert "delta.logRetentionDuration is 30 days" in refused.errors
    assert command("validate", config).status == 2


def test_somebody_elses_turn_is_respected(tmp_path: Path, command: Commands) -> None:
    table = living_table(tmp_path)
    paper = {
        "format": 1,
        "token": 4,
        "beat": 9,
        "seconds": 60,
        "is_released": False,
        "holder": {"machine": "elsewhere", "pid": 7, "name": "process 7 on elsewhere"},
    }
    folder = tmp_path / "_tailerd/maintenance"
    folder.mkdir(parents=True)
    (folder / f"{4:020}.lease").write_text(json.dumps(paper))
    refused = command("maintain", tmp_path, "--apply")
    assert refused.status == 1
    assert "process 7 on elsewhere maintains this table now" in refused.errors
    assert not list(table.log.glob("*.checkpoint*"))


def test_validate_tells_what_would_be_done(tmp_path: Path, command: Commands) -> None:
    table = living_table(tmp_path / "table")
    config = configure(tmp_path, table, maintenance={"checksum": True})
    reported = command("validate", config)
    assert reported.status == 0
    assert "no sink; maintenance due now: checksum, checkpoint" in reported.output
    assert not list(table.log.glob("*.checkpoint*"))


def test_a_table_that_is_only_maintained_has_no_offset(tmp_path: Path, command: Commands) -> None:
    table = living_table(tmp_path / "table")
    config = configure(tmp_path, table, maintenance={})
    shown = command("offsets", "--config", config, "--json")
    assert (shown.status, shown.output) == (0, "")
    for arguments in (("orders",), ("reset", "orders", "--to", "latest")):
        refused = command("offsets", *arguments, "--config", config)
        assert refused.status == 2
        assert "orders has no sink" in refused.errors


@pytest.mark.parametrize("location", ["nowhere", ""])
def test_a_location_without_a_table_is_named(
    tmp_path: Path, command: Commands, location: str
) -> None:
    refused = command("maintain", tmp_path / location if location else "")
    assert refused.status in (2, 3)
    assert refused.errors.startswith("error[")


def test_the_policy_chooses_the_form_of_the_manifest(tmp_path: Path, command: Commands) -> None:
    table = living_table(tmp_path / "table", is_v2=True)
    config = configure(
        tmp_path, table, maintenance={"checkpoint": {"every_commits": 1, "manifest": "parquet"}}
    )
    assert command("maintain", "orders", "--config", config, "--apply").status == 0
    [manifest] = table.log.glob("*.checkpoint.*")
    assert manifest.suffix == ".parquet"


@pytest.mark.spark
@pytest.mark.slow
def test_spark_writes_the_checkpoint_where_it_is_asked_to(
    tmp_path: Path, command: Commands
) -> None:
    require_java()
    table = living_table(tmp_path / "table", is_v2=True)
    expected = sorted(row["id"] for row in table.rows())
    done = command("maintain", table.folder, "--apply", "--engine", "spark")
    assert done.status == 0, done.errors
    assert f"Wrote a checkpoint of version {table.version}" in done.output
    hide(table, 0, table.version)
    found = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(str(table.folder)))
    rows = pa.table(found.execute("SELECT id FROM t")).column("id").to_pylist()
    assert sorted(rows) == expected
    assert "not due" in command("maintain", table.folder, "--engine", "spark").output


def test_spark_is_refused_where_it_cannot_help(tmp_path: Path, command: Commands) -> None:
    table = living_table(tmp_path / "table")
    reported = command("maintain", table.folder, "--engine", "spark")
    assert (reported.status, "delta.checkpointPolicy = v2" in reported.errors) == (3, True)
    config = configure(tmp_path, table, maintenance={"checksum": True})
    reported = command("maintain", "orders", "--config", config, "--engine", "spark")
    assert (reported.status, "leave checksum out" in reported.errors) == (2, True)


@pytest.mark.spark
def test_a_spark_that_cannot_start_is_an_error_and_leaves_nothing(
    tmp_path: Path, command: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = living_table(tmp_path / "table", is_v2=True)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "no-java"))
    reported = command("maintain", table.folder, "--apply", "--engine", "spark")
    assert reported.status == 2
    assert "Spark engine cannot start" in reported.errors
    assert not list(table.log.glob("*checkpoint*"))
