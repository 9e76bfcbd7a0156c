"""A daemon on Azure and on Google: rows, state, maintenance, errors, and no secret shown."""

from __future__ import annotations

import asyncio
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tailerd.errors import AccessDeniedError, BucketMissingError, StorageError
from tests.clouds.buckets import CLOUDS
from tests.clouds.servers import Azurite, CloudServer
from tests.integration.buckets.bucket_table import BucketTable, write_config
from tests.integration.daemon.running import daemon, delivered_ids, run_to_end
from tests.waiting import eventually

pytestmark = pytest.mark.full


@pytest.fixture(params=CLOUDS)
def server(request: pytest.FixtureRequest) -> CloudServer:
    found: CloudServer = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def table(tmp_path: Path, server: CloudServer) -> BucketTable:
    return BucketTable(tmp_path / "table", server)


def test_rows_offsets_and_checkpoints_work_as_in_other_buckets(
    table: BucketTable, tmp_path: Path
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
    names = table.server.names(f"{table.bucket}/lake/orders/_delta_log")
    assert any(name.endswith(".checkpoint.parquet") for name in names)
    for command in (("doctor", "--config", config), ("validate", config)):
        assert run_to_end(*command).returncode == 0


async def test_a_missing_container_and_a_missing_server_are_errors_with_remedies(
    server: CloudServer,
) -> None:
    store = server.store()
    with pytest.raises(BucketMissingError, match="no-such-container"):
        await store.get("no-such-container/a")
    closed = server.store("http://127.0.0.1:1/devstoreaccount1", attempts=1)
    with pytest.raises(StorageError) as caught:
        await closed.get("any/a")
    assert caught.value.retryable


async def test_a_wrong_key_is_refused_and_shown_nowhere(azurite: Azurite) -> None:
    bucket = azurite.new_bucket()
    secret = "c2VjcmV0LXRoYXQtbm9ib2R5LXNlZXM="
    store: Any = azurite.store(account_key=secret)
    with pytest.raises(AccessDeniedError) as caught:
        await store.get(f"{bucket}/a")
    assert "storage" in caught.value.remedy.lower()
    shown = (caught.value, store.account, azurite.stores(), azurite.stores().settings)
    for text in (str(caught.value), *map(repr, shown)):
        assert secret not in text
        assert "sig=" not in text


PROGRAM = """
import asyncio, pickle, sys
account, path = pickle.loads(bytes.fromhex(sys.argv[1])), sys.argv[2]
from tailerd.storage.object_store.store import CloudStore
store = CloudStore("any", account)
async def work():
    await store.get(path)
    left = [asyncio.create_task(store.get(path)) for _ in range(8)]
    await asyncio.sleep(0.003)
    return left
asyncio.run(work())
"""


def test_a_program_ends_well_with_requests_in_flight(server: CloudServer) -> None:
    path = f"{server.new_bucket()}/a"
    asyncio.run(server.store().put(path, bytes(100_000)))
    arguments = [sys.executable, "-c", PROGRAM, pickle.dumps(server.account()).hex(), path]
    for _ in range(5):
        running = [subprocess.Popen(arguments) for _ in range(2)]
        assert [each.wait(30) for each in running] == [0, 0]
