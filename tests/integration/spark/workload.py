"""Random histories of a Delta table, as SQL for the reference implementation.

The same seed gives the same statements where the table answers with the same columns.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

Column = tuple[str, str]
KEPT = ("id", "part")
"""Columns that statements select rows by: never renamed or dropped."""

_COLUMNS: Sequence[Column] = (
    ("name", "string"),
    ("amount", "int"),
    ("small", "smallint"),
    ("price", "decimal(10,2)"),
    ("ratio", "float"),
    ("seen", "timestamp"),
    ("day", "date"),
    ("flag", "boolean"),
    ("raw", "binary"),
    ("tags", "array<string>"),
    ("deep", "struct<a:int,b:string>"),
    ("more", "map<string,int>"),
)
_WIDER = {
    "smallint": ("int", "bigint"),
    "int": ("bigint",),
    "float": ("double",),
    "decimal(10,2)": ("decimal(16,4)",),
}
_VALUES = {
    "bigint": "id * 3",
    "int": "CAST(id % 100 AS INT)",
    "smallint": "CAST(id % 9 AS SMALLINT)",
    "double": "id / 3",
    "float": "CAST(id / 4 AS FLOAT)",
    "string": "IF(id % 5 = 0, NULL, CONCAT('n ', id % 7))",
    "timestamp": "TIMESTAMP_MICROS(1700000000000000 + id * 1000003)",
    "date": "DATE_ADD(DATE'2024-02-28', CAST(id % 3 AS INT))",
    "boolean": "id % 3 = 0",
    "binary": "CAST(CONCAT('b', id) AS BINARY)",
    "array<string>": "ARRAY('x', NULL, STRING(id))",
    "struct<a:int,b:string>": "IF(id % 4 = 0, NULL, NAMED_STRUCT('a', CAST(id AS INT), 'b', 'y'))",
    "map<string,int>": "MAP('k', CAST(id AS INT))",
}


class Workload:
    """One seed's table.

    Attributes:
        features: What the table was created with.
    """

    def __init__(self, seed: int, path: str) -> None:
        self._random = random.Random(seed)
        self._table = f"delta.`{path}`"
        self._next_id = 0
        self._added = 0
        self.features = self._features()

    def _features(self) -> dict[str, str]:
        choices = {
            "delta.enableChangeDataFeed": ("true", "true", "false"),
            "delta.enableDeletionVectors": ("true", "true", "false"),
            "delta.columnMapping.mode": ("none", "name", "id"),
            "delta.enableTypeWidening": ("true", "false"),
            "delta.enableInCommitTimestamps": ("true", "false"),
            "delta.checkpointPolicy": ("classic", "v2"),
            "delta.checkpointInterval": ("3", "100"),
            "delta.enableRowTracking": ("true", "false", "false"),
        }
        return {name: self._random.choice(values) for name, values in choices.items()}

    def create(self) -> str:
        """Return the statement that makes the table, without rows."""
        return f"CREATE TABLE {self._table} {self._definition(4)}"

    def fill(self, columns: Sequence[Column]) -> str:
        """Return the statement that brings the first rows."""
        return f"INSERT INTO {self._table} {self._select(columns, 12)}"

    def _definition(self, extra: int) -> str:
        listed = ", ".join(f"`{name}` {kind}" for name, kind in self._columns(extra))
        return f"({listed}) {self._layout()}"

    def _columns(self, extra: int) -> list[Column]:
        return [("id", "bigint"), ("part", "string"), *self._random.sample(_COLUMNS, extra)]

    def _layout(self) -> str:
        partition = self._random.choice(["", "PARTITIONED BY (part)"])
        properties = ", ".join(f"'{name}' = '{value}'" for name, value in self.features.items())
        return f"USING delta {partition} TBLPROPERTIES ({properties})"

    def replace(self) -> str:
        """Return a statement that replaces this table by another one, with rows or without."""
        if self._random.random() < 0.5:
            return f"CREATE OR REPLACE TABLE {self._table} {self._definition(2)}"
        columns = self._columns(2)
        select = self._select(columns, 5)
        return f"CREATE OR REPLACE TABLE {self._table} {self._layout()} AS {select}"

    def statement(self, columns: Sequence[Column], version: int) -> str:
        """Return the next statement for a table with these columns at this version."""
        choose = self._random.choices(list(_STATEMENTS), list(_STATEMENTS.values()))[0]
        return choose(self, columns, version) or _insert(self, columns, version)

    def _select(self, columns: Sequence[Column], rows: int) -> str:
        start, self._next_id = self._next_id, self._next_id + rows
        return f"SELECT {self._values(columns)} FROM RANGE({start}, {start + rows}, 1, 2)"

    def _values(self, columns: Sequence[Column]) -> str:
        return ", ".join(f"{_value(name, kind)} AS `{name}`" for name, kind in columns)

    def _some(self) -> str:
        modulus = self._random.choice([2, 3, 5])
        return f"id % {modulus} = {self._random.randrange(modulus)}"

    def _free(self, columns: Sequence[Column]) -> list[Column]:
        return [column for column in columns if column[0] not in KEPT]


def _value(name: str, kind: str) -> str:
    if name == "id":
        return "id"
    if name == "part":
        return "ELT(CAST(id % 4 AS INT) + 1, 'a', 'b c', NULL, 'd=e/ü')"
    if match := re.fullmatch(r"decimal\((\d+),(\d+)\)", kind):
        return f"CAST(id / 4 AS DECIMAL({match[1]},{match[2]}))"
    return _VALUES.get(kind, f"CAST(NULL AS {kind})")


def _insert(work: Workload, columns: Sequence[Column], version: int) -> str:
    return f"INSERT INTO {work._table} {work._select(columns, work._random.randrange(1, 9))}"


def _update(work: Workload, columns: Sequence[Column], version: int) -> str:
    free = work._free(columns)
    if not free:
        return ""
    name, kind = work._random.choice(free)
    value = _value(name, kind).replace("id", "(id + 1)")
    return f"UPDATE {work._table} SET `{name}` = {value} WHERE {work._some()}"


def _delete(work: Workload, columns: Sequence[Column], version: int) -> str:
    where = work._random.choice([work._some(), "part = 'a'", "part IS NULL", "id < 3"])
    return f"DELETE FROM {work._table} WHERE {where}"


def _merge(work: Workload, columns: Sequence[Column], version: int) -> str:
    back = min(work._next_id, 6)
    work._next_id -= back
    source = work._select(columns, back + work._random.randrange(4))
    sets = ", ".join(f"t.`{n}` = s.`{n}`" for n, _ in work._free(columns)) or "t.part = 'm'"
    matched = work._random.choice([f"UPDATE SET {sets}", "DELETE"])
    return (
        f"MERGE INTO {work._table} t USING ({source}) s ON t.id = s.id"
        f" WHEN MATCHED AND s.{work._some()} THEN {matched} WHEN NOT MATCHED THEN INSERT *"
    )


def _overwrite(work: Workload, columns: Sequence[Column], version: int) -> str:
    select = work._select(columns, 6)
    if work._random.random() < 0.5:
        return f"INSERT OVERWRITE {work._table} {select}"
    return (
        f"INSERT INTO {work._table} REPLACE WHERE part = 'a' SELECT * FROM ({select})"
        " WHERE part = 'a'"
    )


def _replace(work: Workload, columns: Sequence[Column], version: int) -> str:
    return work.replace()


def _optimize(work: Workload, columns: Sequence[Column], version: int) -> str:
    purge = f"REORG TABLE {work._table} APPLY (PURGE)"
    return work._random.choice([f"OPTIMIZE {work._table}", purge])


def _restore(work: Workload, columns: Sequence[Column], version: int) -> str:
    return f"RESTORE TABLE {work._table} TO VERSION AS OF {work._random.randrange(version + 1)}"


def _add(work: Workload, columns: Sequence[Column], version: int) -> str:
    work._added += 1
    _, kind = work._random.choice(_COLUMNS)
    return f"ALTER TABLE {work._table} ADD COLUMN (new_{work._added} {kind})"


def _rename(work: Workload, columns: Sequence[Column], version: int) -> str:
    free = work._free(columns)
    if work.features["delta.columnMapping.mode"] == "none" or not free:
        return ""
    work._added += 1
    name = work._random.choice(free)[0]
    return f"ALTER TABLE {work._table} RENAME COLUMN `{name}` TO other_{work._added}"


def _drop(work: Workload, columns: Sequence[Column], version: int) -> str:
    free = work._free(columns)
    if work.features["delta.columnMapping.mode"] == "none" or len(free) < 2:
        return ""
    return f"ALTER TABLE {work._table} DROP COLUMN `{work._random.choice(free)[0]}`"


def _widen(work: Workload, columns: Sequence[Column], version: int) -> str:
    narrow = [column for column in columns if column[1] in _WIDER]
    if work.features["delta.enableTypeWidening"] == "false" or not narrow:
        return ""
    name, kind = work._random.choice(narrow)
    wider = work._random.choice(_WIDER[kind])
    return f"ALTER TABLE {work._table} ALTER COLUMN `{name}` TYPE {wider}"


def _switch(work: Workload, columns: Sequence[Column], version: int) -> str:
    name = work._random.choice(
        ["delta.enableChangeDataFeed", "delta.enableDeletionVectors", "delta.enableRowTracking"]
    )
    value = work._random.choice(["true", "false"])
    return f"ALTER TABLE {work._table} SET TBLPROPERTIES ('{name}' = '{value}')"


_STATEMENTS: dict[Callable[[Workload, Sequence[Column], int], str], int] = {
    _insert: 4,
    _update: 5,
    _delete: 5,
    _merge: 5,
    _overwrite: 2,
    _replace: 1,
    _optimize: 2,
    _restore: 2,
    _add: 1,
    _rename: 1,
    _drop: 1,
    _widen: 2,
    _switch: 1,
}
