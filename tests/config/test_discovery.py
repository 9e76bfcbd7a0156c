"""Patterns that find tables: templates, names, collisions, and how a wrong one is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailerd.config import Config
from tailerd.config.discovery import table_name, with_tables_found
from tailerd.config.loading import load_config
from tailerd.errors import ConfigError
from tailerd.formats.delta.config import DeltaMaintenanceConfig
from tailerd.formats.table_search import TableSearch, discover_tables
from tailerd.registry import STORES_GROUP
from tailerd.sinks.file.config import FileSinkConfig
from tailerd.storage.table_location import locate_table
from tests.doubles.installed import installed

TEMPLATE = {"from": "snapshot", "sink": {"kind": "file", "path": "/out/{name}"}}


def lake(folder: Path, *names: str) -> str:
    for name in names:
        (folder / name / "_delta_log").mkdir(parents=True)
    return f"{folder}/*"


def make_config(pattern: str, template: dict[str, Any] = TEMPLATE, **fields: Any) -> Config:
    group = {"path": pattern, "template": template}
    return Config(**{"engine": "arrow", "discover": {"lake": group}, **fields})


def test_every_folder_with_a_log_is_a_table_with_the_templates_fields(tmp_path: Path) -> None:
    pattern = lake(tmp_path, "orders", "refunds")
    (tmp_path / "plain").mkdir()
    discovery = discover_tables(make_config(pattern))
    assert discovery.found == {"orders": "lake", "refunds": "lake"}
    table = discovery.config.tables["orders"]
    assert (table.path, table.start) == (str(tmp_path / "orders"), "snapshot")
    assert isinstance(table.sink, FileSinkConfig)
    assert table.sink.path == "/out/orders"
    assert discovery.config.select_engine("orders") == "arrow"


def test_names_are_made_of_folders_and_what_gives_none_is_told(tmp_path: Path) -> None:
    pattern = lake(tmp_path, "a b", "-x", "Ünïcode", ".hidden", "öö", "y" * 101)
    discovery = discover_tables(make_config(pattern))
    assert sorted(discovery.found) == ["a-b", "n-code", "x"]
    assert {Path(path).name for path, _ in discovery.rejected} == {"öö", "y" * 101}


def test_two_folders_with_one_name_are_told_and_the_first_is_taken(tmp_path: Path) -> None:
    pattern = lake(tmp_path, "Orders", "orders")
    discovery = discover_tables(make_config(pattern))
    assert list(discovery.found) == ["Orders"]
    ((path, reason),) = discovery.rejected
    assert path == str(tmp_path / "orders")
    assert "both have the name 'orders'" in reason


def test_a_folder_that_is_called_so_goes_before_one_whose_name_is_changed(tmp_path: Path) -> None:
    pattern = lake(tmp_path, "x y", "x-y")
    discovery = discover_tables(make_config(pattern))
    assert discovery.config.tables["x-y"].path == str(tmp_path / "x-y")
    assert [path for path, _ in discovery.rejected] == [str(tmp_path / "x y")]


async def test_a_name_stays_with_the_folder_that_had_it_first(tmp_path: Path) -> None:
    config, search = make_config(lake(tmp_path, "x y", "orders")), TableSearch()
    await search.search(config)
    # Both would come first: one is called so itself, the other sorts first.
    lake(tmp_path, "x-y", "Orders")
    discovery = await search.search(config, is_requested=True)
    first = {name: Path(table.path).name for name, table in discovery.config.tables.items()}
    assert first == {"x-y": "x y", "orders": "orders"}
    assert {Path(path).name for path, _ in discovery.rejected} == {"x-y", "Orders"}


async def test_a_name_is_free_again_once_its_folder_was_not_found(tmp_path: Path) -> None:
    (tmp_path / "live").mkdir()
    lake(tmp_path / "staging", "orders")
    config, search = make_config(f"{tmp_path}/*/*"), TableSearch()
    await search.search(config)
    (tmp_path / "staging/orders").rename(tmp_path / "live/orders")
    discovery = await search.search(config, is_requested=True)
    assert discovery.config.tables["orders"].path == str(tmp_path / "live/orders")
    # It has the name now, though the other one is back, and called so too.
    lake(tmp_path / "a", "orders")
    lake(tmp_path / "staging", "orders")
    discovery = await search.search(config, is_requested=True)
    assert discovery.config.tables["orders"].path == str(tmp_path / "live/orders")
    assert [path for path, _ in discovery.rejected] == [
        f"{tmp_path}/{folder}/orders" for folder in ("a", "staging")
    ]


async def test_a_search_that_finds_the_same_folders_checks_no_table_again(tmp_path: Path) -> None:
    config, search = make_config(lake(tmp_path, "a", "b")), TableSearch()
    await search.search(config)
    before = await search.search(config, is_requested=True)
    assert await search.search(config, is_requested=True) is before
    lake(tmp_path, "c")
    after = await search.search(config, is_requested=True)
    assert set(after.config.tables) == {"a", "b", "c"}


async def test_another_pattern_gives_names_anew(tmp_path: Path) -> None:
    search = TableSearch()
    await search.search(make_config(lake(tmp_path / "old", "orders")))
    discovery = await search.search(make_config(lake(tmp_path / "new", "orders")))
    assert discovery.config.tables["orders"].path == str(tmp_path / "new/orders")


def test_a_pattern_and_a_table_may_be_urls_with_escapes(tmp_path: Path) -> None:
    lake(tmp_path / "my lake", "orders", "50%25")
    location = f"file://{tmp_path}/my%20lake"
    own = {"path": f"{location}/orders", "sink": {"kind": "console"}}
    discovery = discover_tables(make_config(f"{location}/*", tables={"mine": own}))
    assert list(discovery.config.tables) == ["mine", "50-25"]
    assert discovery.config.tables["50-25"].path == f"{tmp_path}/my lake/50%25"


@pytest.mark.parametrize(
    "start",
    ["", "/", "file:", "file:///", "file://", "file://localhost", "FILE:", "/tmp/.."],
)
def test_a_table_of_the_file_is_not_found_again(tmp_path: Path, start: str) -> None:
    pattern = lake(tmp_path, "my orders", "other")
    name = "my%20orders" if ":" in start else "my orders"
    own: dict[str, Any] = {"path": f"{start}{tmp_path}/{name}", "sink": {"kind": "console"}}
    assert (Path(locate_table(own["path"]).root) / "_delta_log").is_dir()
    discovery = discover_tables(make_config(pattern, tables={"mine": own}))
    assert list(discovery.config.tables) == ["mine", "other"]


def test_a_path_that_a_table_of_the_file_has_is_reported(tmp_path: Path) -> None:
    pattern = lake(tmp_path, "orders")
    own = {"path": "/elsewhere", "sink": {"kind": "file", "path": "/out/orders"}}
    discovery = discover_tables(make_config(pattern, tables={"mine": own}))
    assert list(discovery.config.tables) == ["mine"]
    assert "would mix" in discovery.rejected[0][1]


def test_nothing_is_found_where_nothing_is(tmp_path: Path) -> None:
    discovery = discover_tables(make_config(f"{tmp_path}/no/*"))
    assert (discovery.found, discovery.config.tables) == ({}, {})


def test_a_template_may_have_durations_and_sizes(tmp_path: Path) -> None:
    template = {
        **TEMPLATE,
        "poll_interval": "250ms",
        "max_bytes_per_batch": "1MiB",
        "maintenance": {"checkpoint": {"every_age": "1h"}},
    }
    table = discover_tables(make_config(lake(tmp_path, "orders"), template)).config.tables["orders"]
    assert (table.poll_interval, table.max_bytes_per_batch) == (0.25, 1 << 20)
    assert isinstance(table.maintenance, DeltaMaintenanceConfig)
    assert table.maintenance.checkpoint is not None
    assert table.maintenance.checkpoint.every_age == 3600


@pytest.mark.parametrize(
    ("pattern", "folder", "name"),
    [
        ("/lake/*", "/lake/orders", "orders"),
        ("/lake/*/*", "/lake/eu/orders", "orders"),
        ("/lake/*/orders", "/lake/eu/orders", "eu-orders"),
        ("s3://lake/*/or[d]ers", "s3://lake/eu/orders", "orders"),
        ("s3://lake/a/*/b/orders", "s3://lake/a/x y/b/orders", "x-y-b-orders"),
        ("file:///lake/*/v1/", "/lake/eu/v1", "eu-v1"),
        ("/lake/orders", "/lake/orders", "orders"),
    ],
)
def test_a_table_is_named_after_what_tells_it_apart(pattern: str, folder: str, name: str) -> None:
    assert table_name(pattern, folder) == name


def test_a_table_of_the_file_in_a_bucket_is_not_found_again() -> None:
    own = {"path": "s3a://lake/orders/", "sink": {"kind": "console"}}
    config = make_config("s3://lake/*", tables={"mine": own})
    found = with_tables_found(config, {"lake": ["s3://lake/orders", "s3://lake/refunds"]})
    assert list(found.config.tables) == ["mine", "refunds"]
    assert found.config.tables["refunds"].path == "s3://lake/refunds"


def test_stores_of_other_distributions_are_no_bucket_and_not_each_other(tmp_path: Path) -> None:
    """Their tables may have the same host and path."""
    stores = dict.fromkeys(("east", "west"), "tailerd.storage.s3.provider:S3StoreProvider")
    with installed(tmp_path, STORES_GROUP, stores):
        own = {"path": "east://lake/orders", "sink": {"kind": "console"}}
        config = make_config("west://lake/*", tables={"mine": own})
        found = with_tables_found(config, {"lake": ["west://lake/orders", "east://lake/orders"]})
        assert {name: table.path for name, table in found.config.tables.items()} == {
            "mine": "east://lake/orders",
            "orders": "west://lake/orders",
        }


def test_buckets_are_looked_through_less_often_than_folders() -> None:
    intervals = [
        make_config(pattern).discover["lake"].interval_seconds for pattern in ("/l/*", "s3://l/*")
    ]
    assert intervals == [60, 600]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{path: /l/*, template: {sink: {kind: file, path: /out}}}", ["Write {name} in it"]),
        ("{path: /l/*, template: {path: /x, sink: {kind: console}}}", ["`path`", "template"]),
        ("{path: /l/*, template: {create: demo, sink: {kind: console}}}", ["`create`"]),
        ("{path: /l/*, template: {frm: 1, sink: {kind: console}}}", ["template.frm", "`from`"]),
        ("{path: /l/*, template: {sink: {kind: fil}}}", ["template.sink.kind", "`file`"]),
        ("{path: /l/*, evry: 1s, template: {sink: {kind: console}}}", ["evry", "`every`"]),
        ("{path: /l/*, every: 10, template: {sink: {kind: console}}}", ["every", "10s"]),
        ("{path: 'hdfs://b/*', template: {sink: {kind: console}}}", ["hdfs://"]),
        ("{path: 's3://b', template: {sink: {kind: console}}}", ["s3://bucket/lake/*"]),
        ("{path: 's3://*/lake', template: {sink: {kind: console}}}", ["one section for each"]),
        ("{path: /l/*}", ["template is required"]),
        ("{path: /l/*, template: {engine: arrow, sink: {kind: stream, format: delta}}}", ["arrow"]),
    ],
)
def test_a_wrong_pattern_is_refused_by_its_field(
    tmp_path: Path, text: str, words: list[str]
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(f"discover: {{lake: {text}}}")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    for word in ("lake", *words):
        assert word in str(caught.value)


@pytest.mark.parametrize("field", ["on_gap", "on_corrupt_commit"])
def test_a_policy_that_a_stream_of_spark_cannot_keep_is_refused(tmp_path: Path, field: str) -> None:
    value = {"on_gap": "latest", "on_corrupt_commit": "skip-and-record"}[field]
    path = tmp_path / "c.yaml"
    text = f"discover: {{lake: {{path: /l/*, template: {{{field}: {value}, sink: {{%s}}}}}}}}"
    path.write_text(text % "kind: stream, format: json")
    with pytest.raises(ConfigError, match=rf"discover\.lake\.template\.{field}"):
        load_config(path)
    path.write_text(text % "kind: console")
    assert list(load_config(path).discover) == ["lake"]


def test_the_example_of_many_tables_can_be_loaded() -> None:
    config = load_config(Path(__file__).resolve().parents[2] / "config/many-tables.yaml")
    assert list(config.discover) == ["lake"]
