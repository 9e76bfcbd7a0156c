"""A daemon on Azure and on Google: rows, state, maintenance, errors, and no secret shown."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tailerd.errors import AccessDeniedError, BucketMissingError, StorageError
from tailerd.storage.base import ObjectStore
from tests.clouds.buckets import CLOUDS
from tests.clouds.servers import AZURE_ACCOUNT, AZURE_KEY, Azurite, CloudServer
from tests.integration.daemon.running import daemon, delivered_ids, eventually, run_to_end
from tests.tables.builder import TableBuilder

pytestmark = pytest.mark.full


@pytest.fixture(params=CLOUDS)
def server(request: pytest.FixtureRequest) -> CloudServer:
    found: CloudServer = request.getfixturevalue(request.param)
    return found


class CloudTable:
    """A table whose commits go to a bucket: data first, then the commit."""

    def __init__(self, folder: Path, server: CloudServer) -> None:
        self.builder = TableBuilder(folder)
        self.server = server
        self.bucket = server.new_bucket()
        self.location = f"{server.scheme}://{self.bucket}/lake/orders"
        self.ids: list[int] = []
        self._known: set[Path] = set()
        self.append()

    def append(self) -> None:
        """Commit a row."""
        self.ids.append(len(self.ids))
        self.builder.append([{"id": self.ids[-1], "name": "x"}])
        found = {path for path in self.builder.folder.rglob("*") if path.is_file()} - self._known
        for path in sorted(found, key=lambda path: ("_delta_log" in path.parts, path)):
            key = path.relative_to(self.builder.folder).as_posix()
            asyncio.run(self.store.put(f"{self.bucket}/lake/orders/{key}", path.read_bytes()))
        self._known |= found

    @property
    def store(self) -> ObjectStore:
        """The store that it is in."""
        return self.server.store()


@pytest.fixture
def table(tmp_path: Path, server: CloudServer) -> CloudTable:
    return CloudTable(tmp_path / "table", server)


def storage_of(server: CloudServer) -> dict[str, Any]:
    """Return the section `storage` that reaches a server."""
    if isinstance(server, Azurite):
        section = {"account": AZURE_ACCOUNT, "account_key": AZURE_KEY}
        return {"azure": {**section, "endpoint": server.endpoint}, "attempts": 2}
    key = server.account().options()["google_service_account"]
    return {"google": {"service_account_file": key, "endpoint": server.endpoint}, "attempts": 2}


def write_config(folder: Path, table: CloudTable, **fields: Any) -> Path:
    orders = {
        "path": table.location,
        "from": "snapshot",
        "poll_interval": "200ms",
        "sink": {"kind": "file", "path": str(folder / "out")},
        **fields,
    }
    config = {
        "engine": "arrow",
        "state": f"{table.server.scheme}://{table.bucket}/state",
        "http": {"listen": "127.0.0.1:0"},
        "storage": storage_of(table.server),
        "tables": {"orders": orders},
    }
    path = folder / "tailerd.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def test_rows_offsets_and_checkpoints_work_as_in_other_buckets(
    table: CloudTable, tmp_path: Path
) -> None:
    config = write_config(tmp_path, table, maintenance={"checkpoint": {"every_commits": 2}})
    with daemon(config):
        for _ in range(4):
            eventually(lambda: delivered_ids(tmp_path / "out") == table.ids)
            table.append()
        eventually(lambda: delivered_ids(tmp_path / "out") == table.ids)
    for _ in range(3):
        table.append()
    done = run_to_end("run", "--config", config, "--once")
    assert done.returncode == 0, done.stderr
    assert delivered_ids(tmp_path / "out") == table.ids
    done = run_to_end("verify", "orders", "--config", config, "--json")
    assert json.loads(done.stdout)["is_equal"], done.stdout
    log = f"{table.bucket}/lake/orders/_delta_log"

    async def names() -> list[str]:
        return [meta.name async for meta in table.store.list_from(log)]

    assert any(name.endswith(".checkpoint.parquet") for name in asyncio.run(names()))
    for command in (("doctor", "--config", config), ("validate", config)):
        assert run_to_end(*command).returncode == 0


def test_a_killed_daemon_loses_and_doubles_nothing(table: CloudTable, tmp_path: Path) -> None:
    config = write_config(tmp_path, table)
    for _ in range(3):
        with daemon(config) as process:
            table.append()
            eventually(lambda: len(delivered_ids(tmp_path / "out")) > 0)
            process.kill()
            process.wait(10)
        # The lease of the dead one expires, or is taken over at once on this machine.
    done = run_to_end("run", "--config", config, "--once")
    assert done.returncode == 0, done.stderr
    assert delivered_ids(tmp_path / "out") == table.ids


async def test_a_missing_container_and_a_missing_server_are_errors_with_remedies(
    server: CloudServer,
) -> None:
    store = server.store()
    with pytest.raises(BucketMissingError, match="no-such-container"):
        await store.get("no-such-container/a")
    dead = server.stores("http://127.0.0.1:1/devstoreaccount1")
    closed = dead.locate(f"{server.scheme}://any")[0]
    closed.account = _impatient(closed.account)  # type: ignore[attr-defined]
    with pytest.raises(StorageError) as caught:
        await closed.get("any/a")
    assert caught.value.retryable


def _impatient(account: Any) -> Any:
    from dataclasses import replace

    return replace(account, attempts=1)


async def test_a_wrong_key_is_refused_and_shown_nowhere(azurite: Azurite) -> None:
    from dataclasses import replace

    bucket = azurite.new_bucket()
    store: Any = azurite.store()
    secret = "c2VjcmV0LXRoYXQtbm9ib2R5LXNlZXM="
    store.account = replace(store.account, account_key=secret)
    with pytest.raises(AccessDeniedError) as caught:
        await store.get(f"{bucket}/a")
    assert "storage" in caught.value.remedy.lower()
    shown = (caught.value, store.account, azurite.stores(), azurite.stores().settings)
    for text in (str(caught.value), *map(repr, shown)):
        assert secret not in text
        assert "sig=" not in text
