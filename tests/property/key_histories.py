"""Random tables with change files as bad as writers make them, and readers that go by the key."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tailerd.records.base import Records
from tests.tables.builder import CDF, TableBuilder
from tests.tables.naive_log import Action

FIELDS = [("id", "long"), ("p", "string"), ("v", "long")]
Row = dict[str, Any]
State = dict[int, Row]


class KeyHistory:
    """A table whose ids are unique in every version.

    An update may move a row to another partition, or to another id, also one that another row
    leaves. Its images go to files of their own, or to one; the rows of a file, and the files of a
    commit, are in any order. Data files are written anew by every commit that changes a row, the
    added ones first, as writers name them.

    Attributes:
        state: What the newest version holds, by id.
    """

    def __init__(self, folder: Path, choice: random.Random) -> None:
        self.table = TableBuilder(folder, fields=FIELDS, properties=CDF)
        self.table.create()
        self.state: State = {}
        self._choice = choice
        self._counter = 0
        self._adds: list[Action] = []

    def commit(self) -> None:
        """Write one commit, with change files."""
        choice = self._choice
        files: list[list[Row]] = [[] for _ in range(choice.choice([1, 1, 2, 3, 5]))]
        touched = [key for key in self.state if choice.random() < 0.7]
        free = [key for key in range(10) if key not in self.state or key in touched]
        after = {key: row for key, row in self.state.items() if key not in touched}
        choice.shuffle(free)
        for old in (self.state[key] for key in touched):
            if choice.random() < 0.3:
                self._put(files, [(old, "delete")])
                continue
            # Its own id, if nobody took it, or any that is free.
            key = old["id"] if old["id"] in free and choice.random() < 0.7 else free[0]
            free.remove(key)
            after[key] = self._row(key)
            self._put(files, [(old, "update_preimage"), (after[key], "update_postimage")])
        for key in free:
            if choice.random() < 0.3:
                after[key] = self._row(key)
                self._put(files, [(after[key], "insert")])
        changes = [self.table.cdc_file(rows) for rows in files if rows]
        if after == self.state:
            self.table.commit(*changes)
            return
        self.state = after
        removed, self._adds = (
            self._adds,
            [
                self.table.data_file(rows)
                for part in "abc"
                if (rows := [row for row in after.values() if row["p"] == part])
            ],
        )
        self.table.commit(*self._adds, *map(self.table.remove, removed), *changes)

    def _row(self, key: int) -> Row:
        self._counter += 1
        return {"id": key, "p": self._choice.choice("abc"), "v": self._counter}

    def _put(self, files: list[list[Row]], images: list[tuple[Row, str]]) -> None:
        rows = [{**row, "_change_type": kind} for row, kind in images]
        if self._choice.random() < 0.5:
            self._choice.choice(files).extend(rows)
            return
        for row in rows:
            file = self._choice.choice(files)
            file.insert(self._choice.randint(0, len(file)), row)


def applied(state: dict[bytes, Row], records: Iterable[tuple[bytes, bytes | None]]) -> None:
    """Keep the last record of each key, as a compacted topic does; tombstones take it away."""
    for key, value in records:
        if value is None:
            state.pop(key, None)
        else:
            state[key] = json.loads(value)


def list_pairs(records: Records) -> list[tuple[bytes, bytes | None]]:
    """Return keys and values."""
    assert records.keys is not None
    return list(zip(records.keys.to_pylist(), records.values.to_pylist(), strict=True))


def rows_that_are_there(state: dict[bytes, Row]) -> State:
    """Return the rows that last records tell of, whichever format they have."""
    found: State = {}
    for record in state.values():
        if "op" in record:
            row = record["after"]
        else:
            is_gone = record["_change_type"] in ("delete", "update_preimage")
            row = None if is_gone else {name: record[name] for name, _ in FIELDS}
        if row is not None:
            found[row["id"]] = row
    return found
