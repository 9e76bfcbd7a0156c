"""Tables of every format that the contract is checked with. A new format adds itself here."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import pytest

from tailerd.changefeed.change_task import ChangeType
from tailerd.changefeed.offset import Version
from tailerd.errors import NotATableError
from tailerd.formats.base import OpenRequest
from tailerd.formats.detect import open_table
from tailerd.registry import FORMATS_GROUP
from tailerd.state.ledger import LedgerLocation
from tailerd.storage.table_location import locate_table
from tests.doubles.installed import installed
from tests.doubles.memory_format import MemoryTable
from tests.formats.tiledb import arrays
from tests.tables.builder import TableBuilder
from tests.tables.dataset_writer import DatasetWriter
from tests.tables.iceberg_writer import IcebergWriter
from tests.tables.lance_writer import LanceWriter

ROOT = Path(__file__).resolve().parents[2]
MEMORY = "tests.doubles.memory_format:MemoryFormat"


class Table(Protocol):
    """A table of `id` and `name` that a test writes."""

    location: Path
    format: str
    ledger: LedgerLocation | None
    """What it is opened with, for its history to be known."""

    def append(self, ids: Sequence[int]) -> Version:
        """Commit rows; return the version."""
        ...

    def remove(self, version: Version) -> Version:
        """Commit that the rows which `version` appended are deleted."""
        ...

    def drop_before(self, version: Version) -> None:
        """Let the history begin at `version`."""
        ...

    def replace(self) -> None:
        """Drop the table and create another in its place, with a commit."""
        ...


class WrittenMemory:
    """A table of the tests' own format."""

    format = "memory"
    ledger: LedgerLocation | None = None

    def __init__(self, location: Path) -> None:
        self.location = location
        self._table = MemoryTable("one", {})
        self._appended: dict[Version, Sequence[int]] = {}

    def append(self, ids: Sequence[int]) -> Version:
        version = self._table.commit(*((ChangeType.INSERT.value, n, f"n{n}") for n in ids))
        self._appended[version] = ids
        self._table.save(self.location)
        return version

    def remove(self, version: Version) -> Version:
        ids = self._appended[version]
        done = self._table.commit(*((ChangeType.DELETE.value, n, f"n{n}") for n in ids))
        self._table.save(self.location)
        return done

    def drop_before(self, version: Version) -> None:
        self._table.first = version
        self._table.save(self.location)

    def replace(self) -> None:
        self._table = MemoryTable("two", {})
        self.append([1])


class WrittenDelta:
    """A Delta table."""

    format = "delta"
    ledger: LedgerLocation | None = None

    def __init__(self, location: Path) -> None:
        self.location = location
        self._builder = TableBuilder(location)

    def append(self, ids: Sequence[int]) -> Version:
        commit = self._builder.append([{"id": n, "name": f"n{n}"} for n in ids])
        return Version(commit.version)

    def remove(self, version: Version) -> Version:
        added = self._builder.state(version).adds
        before = self._builder.state(version - 1).adds if version else {}
        gone = [add for key, add in added.items() if key not in before]
        removes = [self._builder.remove({"add": add}) for add in gone]
        return Version(self._builder.commit(*removes).version)

    def drop_before(self, version: Version) -> None:
        self._builder.checkpoint()
        for old in range(version):
            self._builder.commit_path(old).unlink()

    def replace(self) -> None:
        for path in self.location.rglob("*.*"):
            if path.is_file():
                path.unlink()
        self._builder = TableBuilder(self.location, table_id="another")
        self.append([1])


class WrittenKartothek:
    """A Kartothek dataset, and a ledger that observes it after each commit."""

    format = "kartothek"

    def __init__(self, location: Path) -> None:
        self.location = location
        self._ledger = location.parent / "ledger"
        self.ledger: LedgerLocation | None = LedgerLocation(str(self._ledger))
        self._writer = DatasetWriter(location.parent, location.name)
        self._appended: dict[Version, list[str]] = {}

    def append(self, ids: Sequence[int]) -> Version:
        labels = self._writer.commit([{"id": n, "name": f"n{n}"} for n in ids])
        version = self._observed()
        self._appended[version] = labels
        return version

    def _observed(self) -> Version:
        async def look() -> Version:
            request = OpenRequest(ledger=self.ledger)
            source = await open_table(locate_table(str(self.location)), request, self.format)
            return source.version_before((await source.initial_offset("latest")).version)

        # Tests of coroutines have a loop of their own.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, look()).result()

    def remove(self, version: Version) -> Version:
        labels = self._appended[version]
        self._writer.commit(without=lambda label: label in labels)
        return self._observed()

    def drop_before(self, version: Version) -> None:
        for old in range(version):
            (self._ledger / f"{old:020d}.entry").unlink()

    def replace(self) -> None:
        self._writer.drop()
        with pytest.raises(NotATableError):
            self._observed()
        self.append([1])


WriterT = TypeVar("WriterT", IcebergWriter, LanceWriter)


class Written(Generic[WriterT]):
    """A table whose writer deletes by a predicate."""

    writer: type[WriterT]
    ledger: LedgerLocation | None = None

    def __init__(self, location: Path) -> None:
        self.location = location
        self._writer: WriterT = self.writer(location)
        self._appended: dict[Version, Sequence[int]] = {}

    def append(self, ids: Sequence[int]) -> Version:
        version = Version(self._writer.append([{"id": n, "name": f"n{n}"} for n in ids]))
        self._appended[version] = ids
        return version

    def remove(self, version: Version) -> Version:
        ids = ", ".join(map(str, self._appended[version]))
        return Version(self._writer.delete(f"id IN ({ids})"))


class WrittenIceberg(Written[IcebergWriter]):
    """An Iceberg table."""

    format = "iceberg"
    writer = IcebergWriter

    def drop_before(self, version: Version) -> None:
        self._writer.expire_before(version)

    def replace(self) -> None:
        self._writer.drop()
        shutil.rmtree(self.location)
        self.append([1])


class WrittenLance(Written[LanceWriter]):
    """A Lance table."""

    format = "lance"
    writer = LanceWriter

    def drop_before(self, version: Version) -> None:
        self._writer.clean_up_before(version)

    def replace(self) -> None:
        shutil.rmtree(self.location)
        self._writer = LanceWriter(self.location)
        self.append([1])


class WrittenTileDB:
    """A sparse TileDB array that allows duplicates, by the library itself."""

    format = "tiledb"

    def __init__(self, location: Path) -> None:
        self.location = location
        self.ledger: LedgerLocation | None = LedgerLocation(str(location.parent / "ledger"))
        self._time = 0
        self._appended: dict[Version, Sequence[int]] = {}

    def _next(self) -> Version:
        self._time += 1000
        return Version(self._time)

    def append(self, ids: Sequence[int]) -> Version:
        if not self._time:
            arrays.create_named(self.location)
        version = self._next()
        arrays.write_named(self.location, int(version), list(ids))
        self._appended[version] = ids
        return version

    def remove(self, version: Version) -> Version:
        done = self._next()
        condition = " or ".join(f"id == {number}" for number in self._appended[version])
        arrays.delete(self.location, int(done), condition)
        return done

    def drop_before(self, version: Version) -> None:
        arrays.forget_times(self.location, int(version) - 1001, int(version))

    def replace(self) -> None:
        shutil.rmtree(self.location)
        self._time = 0
        self.append([1])


@pytest.fixture(scope="module")
def memory_is_installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Register the in-memory format as another distribution does, for one module.

    Only where it is needed: commands that are started meanwhile load everything anew.
    """
    with installed(tmp_path_factory.mktemp("installed"), FORMATS_GROUP, {"memory": MEMORY}):
        yield


@pytest.fixture(
    params=[
        WrittenDelta,
        WrittenMemory,
        WrittenIceberg,
        WrittenKartothek,
        WrittenLance,
        WrittenTileDB,
    ],
    ids=lambda kind: kind.format,
)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    if request.param is WrittenMemory:
        request.getfixturevalue("memory_is_installed")
    found: Table = request.param(tmp_path / "table")
    return found
