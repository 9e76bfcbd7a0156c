"""A store of another distribution: found by its entry point, and a table tailed from it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailerd.config import Config
from tailerd.errors import ConfigError
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.registry import store_schemes
from tailerd.storage.stores import Stores, StoreSettings
from tests.cli.commands import Commands
from tests.plugins import example_is_installed
from tests.tables.builder import TableBuilder


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Commands:
    return Commands(capfd)


@pytest.fixture
def plugin() -> Iterator[None]:
    with example_is_installed():
        yield


async def put_table(folder: Path) -> None:
    """Copy a table of one row into a box."""
    table = TableBuilder(folder / "orders")
    [add] = table.append([{"id": 1, "name": "one"}]).adds
    store, root = Stores().locate("box://lake/orders")
    for path in (table.commit_path(0), table.folder / add["add"]["path"]):
        await store.put(f"{root}/{path.relative_to(table.folder)}", path.read_bytes())


def _config(**storage: object) -> Config:
    return Config.model_validate(
        {
            "engine": "arrow",
            "tables": {"orders": {"path": "box://data/orders", "sink": {"kind": "console"}}},
            "storage": storage,
        }
    )


@pytest.mark.usefixtures("plugin")
async def test_a_table_is_tailed_from_a_store_of_another_distribution(
    tmp_path: Path, command: Commands
) -> None:
    await put_table(tmp_path)
    assert "box" in store_schemes()
    words = ("tail", "box://lake/orders", "--from", "0", "--once", "--format", "jsonl")
    ran = await asyncio.to_thread(command, *words)
    assert [row["id"] for row in ran.rows] == [1]


@pytest.mark.usefixtures("plugin")
async def test_its_files_are_reached_by_the_url_that_its_store_gives(tmp_path: Path) -> None:
    await put_table(tmp_path)
    reader = LogReader.at("box://lake/orders")
    assert reader.url == "box://lake/orders"
    assert (await reader.open()).num_files == 1


@pytest.mark.usefixtures("plugin")
def test_its_section_is_its_own_and_no_secret_is_shown() -> None:
    config = _config(stores={"box": {"token": "hush"}})
    settings = StoreSettings.from_config(config.storage)
    assert "hush" not in repr(config) + config.model_dump_json() + repr(settings)
    assert StoreSettings.from_json(settings.to_json()) == settings
    stores = Stores(settings)
    assert stores.locate("box://data/orders")[1] == "data/orders"
    with pytest.raises(ConfigError, match="unknown field tokne"):
        StoreSettings.from_config(_config(stores={"box": {"tokne": "x"}}).storage)


def test_without_it_the_scheme_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown scheme 'box'"):
        Stores().locate("box://data/orders")
    with pytest.raises(ValueError, match="box:// is not in this release"):
        _config()
