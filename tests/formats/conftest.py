"""Tables of every format that the contract is checked with. A new format adds itself here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import pytest

from tailerd.changefeed.change_task import ChangeType
from tailerd.changefeed.offset import Version
from tailerd.registry import FORMATS_GROUP
from tests.doubles.installed import installed
from tests.doubles.memory_format import MemoryTable
from tests.tables.builder import TableBuilder

ROOT = Path(__file__).resolve().parents[2]
MEMORY = "tests.doubles.memory_format:MemoryFormat"


class Table(Protocol):
    """A table of `id` and `name` that a test writes."""

    place: Path
    format: str

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

    def __init__(self, place: Path) -> None:
        self.place = place
        self._table = MemoryTable("one", {})
        self._appended: dict[Version, Sequence[int]] = {}

    def append(self, ids: Sequence[int]) -> Version:
        version = self._table.commit(*((ChangeType.INSERT.value, n, f"n{n}") for n in ids))
        self._appended[version] = ids
        self._table.save(self.place)
        return version

    def remove(self, version: Version) -> Version:
        ids = self._appended[version]
        done = self._table.commit(*((ChangeType.DELETE.value, n, f"n{n}") for n in ids))
        self._table.save(self.place)
        return done

    def drop_before(self, version: Version) -> None:
        self._table.first = version
        self._table.save(self.place)

    def replace(self) -> None:
        self._table = MemoryTable("two", {})
        self.append([1])


class WrittenDelta:
    """A Delta table."""

    format = "delta"

    def __init__(self, place: Path) -> None:
        self.place = place
        self._builder = TableBuilder(place)

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
        for path in self.place.rglob("*.*"):
            if path.is_file():
                path.unlink()
        self._builder = TableBuilder(self.place, table_id="another")
        self.append([1])


@pytest.fixture(scope="package", autouse=True)
def memory_is_installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Register the in-memory format as another distribution does, for these tests alone."""
    with installed(tmp_path_factory.mktemp("installed"), FORMATS_GROUP, {"memory": MEMORY}):
        yield


@pytest.fixture(params=[WrittenDelta, WrittenMemory], ids=lambda kind: kind.format)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    found: Table = request.param(tmp_path / "table")
    return found
