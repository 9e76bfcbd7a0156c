"""A table that changes at random, in every way that the library offers and tailerd reads."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.formats.lance.following import Row, text
from tests.tables.lance_writer import LanceWriter

CHANGES = (
    *("append", "append", "append", "delete", "delete", "update", "update", "upsert", "upsert"),
    *("add_column", "add_null", "drop", "rename", "cast", "compact", "compact", "restore"),
    *("overwrite", "index", "config", "rewrite_column", "delete_everything", "same_upsert"),
)
WORDS = ("a", "b", None, "ünï", "")


class RandomTable:
    """A table and what is done to it next.

    Args:
        seed: Makes the same changes again, as far as the library does.
    """

    def __init__(self, location: Path, seed: int, *, stable_ids: bool, version: str | None) -> None:
        self.random = random.Random(seed)
        self.writer = LanceWriter(location, stable_ids=stable_ids, version=version)
        self.done: list[str] = []
        self._next = 0
        self._columns = 0
        self.writer.write(self._rows(["id", "name"]), max_rows_per_file=7)

    @property
    def dataset(self) -> Any:
        return self.writer.dataset

    def change(self) -> str:
        """Commit something; return what."""
        name = self.random.choice(CHANGES)
        getattr(self, f"_{name}")()
        self.done.append(name)
        return name

    def _rows(self, names: list[str], count: int | None = None) -> pa.Table:
        ids = [self._next + n for n in range(count or self.random.randint(1, 20))]
        self._next = ids[-1] + 1
        values: dict[str, Any] = {
            name: [self.random.choice(WORDS) if name.startswith("n") else n for n in ids]
            for name in names
        }
        return pa.table({"id": ids} | {k: v for k, v in values.items() if k != "id"})

    def _typed(self, rows: pa.Table) -> pa.Table:
        schema = self.dataset.schema
        return pa.table([rows[f.name].cast(f.type) for f in schema], schema=schema)

    def _append(self) -> None:
        rows = self._typed(self._rows(self.dataset.schema.names))
        self.writer.write(rows, max_rows_per_file=self.random.choice([3, 50]))

    def _delete(self) -> None:
        self.dataset.delete(f"id % {self.random.randint(2, 9)} = 1")

    def _delete_everything(self) -> None:
        if self.random.random() < 0.3:
            self.dataset.delete("true")

    def _update(self) -> None:
        where = f"id % {self.random.randint(2, 9)} = 0"
        if self._text_column() is not None:
            self.dataset.update({self._text_column(): "'new'"}, where=where)

    def _text_column(self) -> str | None:
        return next((n for n in self.dataset.schema.names if n.startswith("n")), None)

    def _upsert(self) -> None:
        rows = self._rows(self.dataset.schema.names, 6)
        ids = [n if n % 2 else max(0, n - 12) for n in rows["id"].to_pylist()]
        rows = rows.set_column(0, "id", pa.array(sorted(set(ids)) + [9000 + n for n in range(9)])
                               .slice(0, len(rows)))  # fmt: skip
        merge = self.dataset.merge_insert("id").when_matched_update_all()
        merge.when_not_matched_insert_all().execute(self._typed(rows))

    def _same_upsert(self) -> None:
        rows = self.dataset.to_table(limit=4)
        if rows.num_rows and len(set(rows["id"].to_pylist())) == rows.num_rows:
            self.dataset.merge_insert("id").when_matched_update_all().execute(rows)

    def _add_column(self) -> None:
        self._columns += 1
        self.dataset.add_columns({f"x{self._columns}": f"id * {self._columns}"})

    def _add_null(self) -> None:
        self._columns += 1
        self.dataset.add_columns(pa.schema([pa.field(f"n{self._columns}", pa.string())]))

    def _extra(self) -> list[str]:
        return [name for name in self.dataset.schema.names if name != "id"]

    def _drop(self) -> None:
        if len(self._extra()) > 1:
            self.dataset.drop_columns([self.random.choice(self._extra())])

    def _rename(self) -> None:
        if self._extra():
            old = self.random.choice(self._extra())
            self._columns += 1
            self.dataset.alter_columns({"path": old, "name": f"{old[0]}{self._columns}"})

    def _cast(self) -> None:
        numbers = [f.name for f in self.dataset.schema if f.type == pa.int64() and f.name != "id"]
        if numbers:
            self.dataset.alter_columns({"path": numbers[0], "data_type": pa.int32()})

    def _compact(self) -> None:
        self.dataset.optimize.compact_files(target_rows_per_fragment=30)

    def _restore(self) -> None:
        dataset = self.dataset
        known = [each["version"] for each in dataset.versions()]
        dataset.checkout_version(self.random.choice(known)).restore()

    def _overwrite(self) -> None:
        if self.random.random() < 0.4:
            names = self.random.choice([["id", "name"], ["id", "name", "y"]])
            self.writer.write(self._rows(names), mode="overwrite")

    def _index(self) -> None:
        if self.dataset.count_rows():
            self.dataset.create_scalar_index("id", "BTREE", replace=True)

    def _config(self) -> None:
        self.dataset.update_config({"made": str(self.random.random())})

    def _rewrite_column(self) -> None:
        """Write a column of one fragment again, in place, with some other values."""
        import lance

        fragments, name = self.dataset.get_fragments(), self._text_column()
        if not fragments or name is None:
            return
        fragment = self.random.choice(fragments)
        ids = fragment.to_table(columns=["id"])["id"].to_pylist()
        if len(set(ids)) < len(ids) or not ids:
            return
        some = pa.table({"id": ids[::3], name: ["again"] * len(ids[::3])})
        some = some.set_column(1, name, some[name].cast(self.dataset.schema.field(name).type))
        changed, fields = fragment.update_columns(some, left_on="id", right_on="id")
        operation = lance.LanceOperation.Update(updated_fragments=[changed], fields_modified=fields)
        lance.LanceDataset.commit(
            str(self.writer.location), operation, read_version=self.dataset.version
        )

    def state(self, version: int) -> list[Row]:
        """Return the rows of a version as the library reads them."""
        rows: list[Row] = self.dataset.checkout_version(version).to_table().to_pylist()
        return rows

    def names(self, version: int) -> dict[int, str]:
        """Return the names of the columns of a version, by their ids."""
        fields = self.dataset.checkout_version(version).lance_schema.fields()
        return {each.id(): each.name() for each in fields}

    def state_seen_from(self, version: int, later: int) -> Counter[str]:
        """Return the rows of a version with the columns of a later one: by id, else by name."""
        return Counter(text(row) for row in self.renamed(self.state(version), version, later))

    def renamed(self, rows: list[Row], version: int, later: int) -> list[Row]:
        old, new = self.names(version), self.names(later)
        names = {}
        for number, name in new.items():
            names[old.get(number, name)] = name
        return [{names[k]: v for k, v in row.items() if k in names} for row in rows]
