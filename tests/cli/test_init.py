"""`tailerd init`: what it finds, what it writes, and that `run` accepts it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tailerd.config import load_config
from tests.cli.commands import Commands
from tests.tables.builder import TableBuilder
from tests.tables.dataset_writer import DatasetWriter


def test_the_configuration_is_accepted_by_run_and_delivers_every_table(
    lake: Path, tmp_path: Path, command: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TAILERD__HTTP__LISTEN", "127.0.0.1:0")
    made = command("init", lake, "--sink", "file")
    assert (made.status, made.errors) == (0, "")
    (tmp_path / "t.yaml").write_text(made.output)
    assert command("doctor", "t.yaml").status == 0
    assert command("run", "--config", "t.yaml", "--once").status == 0
    for name in ("orders", "payments"):
        files = list((tmp_path / "changes" / name).glob("*.jsonl"))
        rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        assert sorted(row["id"] for row in rows) == [1, 2]


@pytest.mark.parametrize("sink", ["file", "kafka", "postgres", "http", "console"])
@pytest.mark.parametrize("engine", ["arrow", "spark"])
def test_every_sink_and_engine_gives_a_valid_file(
    lake: Path, tmp_path: Path, command: Commands, sink: str, engine: str
) -> None:
    made = command(
        "init", lake, "--sink", sink, "--engine", engine, "--output", tmp_path / "t.yaml"
    )
    assert made.status == 0, made.errors
    config = load_config(tmp_path / "t.yaml")
    assert sorted(config.tables) == ["orders", "payments"]
    assert {table.sink.kind for table in config.tables.values()} == {sink}
    assert config.engine == engine


@pytest.mark.parametrize("sink", ["kafka", "http"])
def test_a_key_is_used_for_tables_that_have_it_and_shown_as_a_comment_for_others(
    lake: Path, command: Commands, sink: str
) -> None:
    mirror = yaml.safe_load(command("init", lake, "--sink", "postgres", "--key", "id").output)
    assert mirror["tables"]["orders"]["sink"]["mode"] == "upsert"
    with_key = command("init", lake, "--sink", sink, "--key", "id").output
    assert yaml.safe_load(with_key)["tables"]["orders"]["sink"]["key"] == ["id"]
    without = command("init", lake, "--sink", sink, "--key", "order_id").output
    assert "key" not in yaml.safe_load(without)["tables"]["orders"]["sink"]
    assert "# key:" in without


def test_files_go_to_a_bucket_if_the_folder_is_a_url(
    lake: Path, tmp_path: Path, command: Commands
) -> None:
    made = command("init", lake, "--sink", "file", "--folder", "s3://lake/changes/")
    (tmp_path / "t.yaml").write_text(made.output)
    tables = load_config(tmp_path / "t.yaml").tables
    assert tables["orders"].sink.location() == "s3://lake/changes/orders"
    assert "partition_by" in made.output


def test_a_table_itself_is_a_location(lake: Path, command: Commands) -> None:
    made = yaml.safe_load(command("init", lake / "orders", "--sink", "file").output)
    assert list(made["tables"]) == ["orders"]


def test_tables_of_one_name_get_names_that_tell_them_apart(
    tmp_path: Path, command: Commands
) -> None:
    for location in ("eu/orders", "us/orders", "us/a b!"):
        TableBuilder(tmp_path / location).create()
    (tmp_path / "eu/orders/deep").mkdir()
    TableBuilder(tmp_path / "eu/orders/deep/orders").create()
    made = yaml.safe_load(command("init", tmp_path, "--sink", "file").output)
    assert sorted(made["tables"]) == ["a_b_", "eu-orders", "us-orders"]


def test_paths_with_a_meaning_in_yaml_are_quoted(tmp_path: Path, command: Commands) -> None:
    location = tmp_path / "a: #b" / 'it\'s "new"'
    TableBuilder(location).create()
    made = yaml.safe_load(command("init", tmp_path, "--sink", "file").output)
    [table] = made["tables"].values()
    assert table["path"] == str(location)


def test_an_existing_file_is_not_overwritten(lake: Path, tmp_path: Path, command: Commands) -> None:
    target = tmp_path / "t.yaml"
    target.write_text("mine")
    ran = command("init", lake, "--sink", "file", "--output", target)
    assert ran.status == 2
    assert "exists already" in ran.errors
    assert target.read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        ((), 2, "Give --sink file"),
        (("--sink", "fil"), 2, "--sink"),
        (("--sink", "kafka", "--key", "a,,b"), 2, "--key 'a,,b' has an empty entry"),
    ],
)
def test_wrong_usage_names_the_option(
    lake: Path,
    command: Commands,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    status: int,
    words: str,
) -> None:
    ran = command("init", lake, *arguments)
    assert ran.status == status
    assert words in ran.errors
    assert ran.output == ""


def test_checkpoints_are_proposed_only_for_formats_that_have_them(
    tmp_path: Path, command: Commands
) -> None:
    TableBuilder(tmp_path / "delta").append([{"id": 1}])
    DatasetWriter(tmp_path / "kartothek").commit([{"id": 1, "name": "a"}])
    for name, is_proposed in (("delta", True), ("kartothek", False)):
        ran = command("init", tmp_path / name, "--sink", "file")
        assert ran.status == 0, ran.errors
        assert ("# maintenance: {checkpoint" in ran.output) is is_proposed


@pytest.mark.parametrize(
    ("location", "words"), [("nowhere", "no folder"), ("", "No table was found")]
)
def test_a_location_without_tables_is_an_error(
    tmp_path: Path, command: Commands, location: str, words: str
) -> None:
    ran = command("init", tmp_path / location, "--sink", "file")
    assert ran.status == 3
    assert words in ran.errors
