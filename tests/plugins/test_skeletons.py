"""The format skeleton through the contract suite of formats.

The stores and sinks of `tests/contracts` have the skeletons of a store and a sink.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tailerd.changefeed.offset import Version
from tailerd.state.ledger import LedgerLocation
from tests.formats.conftest import Table
from tests.formats.test_contract import *  # noqa: F403 - every clause, with the fixture below
from tests.plugins import example_is_installed


class WrittenStates:
    """A table of the skeleton."""

    format = "states"
    ledger: LedgerLocation | None = None

    def __init__(self, location: Path) -> None:
        self.location = location
        self._states = location / "_states"
        self._table_id = "one"
        self._rows: list[list[dict[str, object]]] = []

    def append(self, ids: Sequence[int]) -> Version:
        head = self._rows[-1] if self._rows else []
        return self._commit([*head, *({"id": n, "name": f"n{n}"} for n in ids)])

    def remove(self, version: Version) -> Version:
        before = self._rows[version - 1] if version else []
        gone = [row for row in self._rows[version] if row not in before]
        return self._commit([row for row in self._rows[-1] if row not in gone])

    def _commit(self, rows: list[dict[str, object]]) -> Version:
        self._states.mkdir(parents=True, exist_ok=True)
        self._rows.append(rows)
        version = Version(len(self._rows) - 1)
        state = json.dumps({"table_id": self._table_id, "rows": rows})
        draft = self._states / "draft"
        draft.write_text(state)
        draft.rename(self._states / f"{version:08}.json")
        return version

    def drop_before(self, version: Version) -> None:
        for number in range(version):
            (self._states / f"{number:08}.json").unlink()

    def replace(self) -> None:
        self.drop_before(Version(len(self._rows)))
        self._table_id, self._rows = "two", []
        self.append([1])


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Table]:
    with example_is_installed():
        yield WrittenStates(tmp_path / "table")
