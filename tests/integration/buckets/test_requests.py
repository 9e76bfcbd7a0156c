"""What following a table in a bucket asks for, counted on the wire; the peer's beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tailerd.changefeed.offset import Offset
from tailerd.clock import SystemClock
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.versioned_source import VersionedSource
from tests.clouds.buckets import BucketServer
from tests.s3.peer import Peer
from tests.s3.proxy import FaultProxy
from tests.s3.upload import upload
from tests.tables.builder import CDF, TableBuilder
from tests.tables.feed import EVERYTHING, read_batches
from tests.tables.opened import open_delta

MOST = 0.5
"""Of the peer's requests."""


class Table:
    """A table in a bucket, with a checkpoint."""

    def __init__(self, server: BucketServer, folder: Path) -> None:
        self.builder = TableBuilder(folder, properties=CDF)
        for number in range(20):
            self.builder.append([{"id": number, "name": "x"}])
        self.builder.checkpoint(16)
        self._server = server
        self.bucket = server.new_bucket()
        self.location = f"{server.scheme}://{self.bucket}/lake/orders"
        upload(server, folder, self.bucket, "lake/orders")

    def commit(self) -> int:
        """Commit one change file; return the version."""
        rows = [{"id": 1, "name": "x", "_change_type": "delete"}]
        folder = self.builder.folder
        before = {path for path in folder.rglob("*") if path.is_file()}
        version = self.builder.commit(self.builder.cdc_file(rows)).version
        for path in sorted({p for p in folder.rglob("*") if p.is_file()} - before):
            key = f"lake/orders/{path.relative_to(folder).as_posix()}"
            self._server.put(self.bucket, key, path.read_bytes())
        return version


@pytest.fixture
def table(server: BucketServer, tmp_path: Path) -> Table:
    return Table(server, tmp_path / "t")


@pytest.fixture
def peer(server: BucketServer, proxy: FaultProxy, table: Table) -> Iterator[Peer]:
    with Peer(server, table.location, server.url_at(proxy.port)) as peer:
        yield peer


def counted(proxy: FaultProxy) -> dict[str, int]:
    """Return the requests since the last count."""
    found = dict(proxy.counts())
    proxy.forget()
    return found


@pytest.fixture
def no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no time pass: some looks are repeated after a while, however few requests there are."""
    monkeypatch.setattr(SystemClock, "monotonic", lambda _: 0.0)


async def followed(table: Table) -> tuple[VersionedSource, Offset]:
    source = await open_delta(table.location)
    at = await source.initial_offset("latest")
    assert await source.latest_offset(at, EVERYTHING) == at
    return source, at


async def test_opening_a_table_with_a_checkpoint_takes_half_of_the_peers_requests(
    proxy: FaultProxy, table: Table, peer: Peer
) -> None:
    snapshot = await LogReader.at(table.location).open()
    ours = counted(proxy)
    assert peer.ask("open") == snapshot.version
    theirs = counted(proxy)
    # The hint, what the log has, the checkpoint, and the commits after it.
    assert ours == {"list": 1, "get": 1 + 1 + 3}
    print(f"open: ours {sum(ours.values())}, deltalake {sum(theirs.values())}")
    assert sum(ours.values()) <= MOST * sum(theirs.values())


@pytest.mark.full
@pytest.mark.usefixtures("no_time")
async def test_an_idle_look_takes_half_of_the_peers_requests(
    proxy: FaultProxy, table: Table, peer: Peer
) -> None:
    source, at = await followed(table)
    peer.ask("open")
    proxy.forget()
    for _ in range(30):
        assert await source.latest_offset(at, EVERYTHING) == at
    ours = counted(proxy)
    for _ in range(30):
        peer.ask("look")
    theirs = counted(proxy)
    assert ours == {"get": 30}
    print(f"idle: ours {sum(ours.values())}, deltalake {sum(theirs.values())}")
    assert sum(ours.values()) <= MOST * sum(theirs.values())


@pytest.mark.usefixtures("no_time")
async def test_a_commit_with_a_change_file_takes_three_requests_and_half_of_the_peers(
    proxy: FaultProxy, table: Table, peer: Peer
) -> None:
    source, at = await followed(table)
    peer.ask("open")
    version = table.commit()
    proxy.forget()
    source.notify(version)
    end = await source.latest_offset(at, EVERYTHING)
    backlog = await source.backlog(at)
    [batch] = await read_batches(source, at, end)
    await source.commit(end)
    assert await source.latest_offset(end, EVERYTHING) == end
    ours = counted(proxy)
    assert (backlog.versions, batch.num_rows, end.version) == (1, 1, version + 1)
    assert sum(ours.values()) <= 3
    if table.location.startswith("az:"):
        # There deltalake 1.6 reads no feed: "Invalid table version".
        return
    peer.ask("look")
    assert peer.ask(f"changes {version}") == 1
    theirs = counted(proxy)
    print(f"commit: ours {sum(ours.values())}, deltalake {sum(theirs.values())}")
    assert sum(ours.values()) <= MOST * sum(theirs.values())
