"""A store of another distribution: found by its entry point, and a table tailed from it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailerd.config import Config
from tailerd.errors import ConfigError
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.registry import STORES_GROUP, store_schemes
from tailerd.storage.stores import Stores, StoreSettings
from tests.doubles.installed import installed
from tests.integration.daemon.running import TAILERD
from tests.tables.builder import TableBuilder

PLUGIN = """
from dataclasses import dataclass, field

from tailerd.errors import ConfigError
from tailerd.storage.local import LocalStore


@dataclass(frozen=True)
class Settings:
    root: str = ""
    token: str = field(default="", repr=False)


class LakeStore(LocalStore):
    scheme = "lake"
    is_remote = True
    is_local_folder = False

    def format_url(self, path):
        return f"lake://{path.lstrip('/')}"


class LakeStoreProvider:
    name = "lake"
    is_remote = True
    settings_type = Settings

    @classmethod
    def read_settings(cls, config):
        given = {} if config is None else (config.stores or {}).get("lake")
        given = given.get_secret_value() if given else {}
        if unknown := set(given) - {"root", "token"}:
            raise ConfigError(f"storage.stores.lake has the unknown field {min(unknown)}.")
        return Settings(**given)

    def __init__(self, settings):
        self.settings = settings
        self.store = LakeStore()

    def reconfigure(self, settings):
        self.settings = settings

    def locate(self, url, host, path):
        return self.store, f"/{host}{path}".rstrip("/")
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed distribution with the scheme `lake`."""
    site = tmp_path / "site"
    with installed(site, STORES_GROUP, {"lake": "lake_store:LakeStoreProvider"}):
        (site / "lake_store.py").write_text(PLUGIN)
        monkeypatch.delitem(sys.modules, "lake_store", raising=False)
        yield


def _config(**storage: object) -> Config:
    return Config.model_validate(
        {
            "engine": "arrow",
            "tables": {"orders": {"path": "lake://data/orders", "sink": {"kind": "console"}}},
            "storage": storage,
        }
    )


@pytest.mark.usefixtures("plugin")
def test_a_table_is_tailed_from_a_store_of_another_distribution(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "orders")
    table.append([{"id": 1, "name": "one"}])
    assert "lake" in store_schemes()
    location = f"lake:/{tmp_path}/orders"
    ran = subprocess.run(
        [*TAILERD, "tail", location, "--from", "0", "--once", "--format", "jsonl"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert json.loads(ran.stdout)["id"] == 1


@pytest.mark.usefixtures("plugin")
async def test_its_files_are_reached_by_the_url_that_its_store_gives(tmp_path: Path) -> None:
    TableBuilder(tmp_path / "orders").append([{"id": 1, "name": "one"}])
    reader = LogReader.at(f"lake:/{tmp_path}/orders")
    assert reader.url == f"lake://{str(tmp_path).lstrip('/')}/orders"
    assert (await reader.open()).num_files == 1


@pytest.mark.usefixtures("plugin")
def test_its_section_is_its_own_and_no_secret_is_shown() -> None:
    config = _config(stores={"lake": {"root": "/x", "token": "hush"}})
    settings = StoreSettings.from_config(config.storage)
    assert "hush" not in repr(config) + config.model_dump_json() + repr(settings)
    assert StoreSettings.from_json(settings.to_json()) == settings
    stores = Stores(settings)
    assert stores.locate("lake://data/orders")[1] == "/data/orders"
    with pytest.raises(ConfigError, match="unknown field tokne"):
        StoreSettings.from_config(_config(stores={"lake": {"tokne": "x"}}).storage)


def test_without_it_the_scheme_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown scheme 'lake'"):
        Stores().locate("lake://data/orders")
    with pytest.raises(ValueError, match="lake:// is not in this release"):
        _config()
