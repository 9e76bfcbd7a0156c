"""Another writer puts its own checkpoint of a version in the place of the one we know the rows of.

deltalake does: it writes a classic checkpoint whether there is one of that version or not.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tailerd.errors import LogCleanedUpError
from tailerd.formats.delta.log.live_files import count_rows
from tests.formats.delta.histories import live_files
from tests.formats.delta.log_bodies import add
from tests.maintenance.test_incremental import Held
from tests.maintenance.written import checkpoint_of
from tests.tables.builder import TableBuilder


def files_first(rows: pa.Table) -> list[pa.Table]:
    is_file = pc.is_valid(pc.struct_field(rows["add"], "path"))
    return [rows.filter(is_file), rows.filter(pc.invert(is_file))]


def files_backwards(rows: pa.Table) -> list[pa.Table]:
    files, others = files_first(rows)
    return [others, files.take(pa.array(range(files.num_rows - 1, -1, -1)))]


@pytest.mark.parametrize("copied_rows", [1, 100], ids=["copied", "decoded"])
@pytest.mark.parametrize("order", [files_first, files_backwards])
async def test_its_rows_are_not_taken_for_those_that_were_read(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    order: Callable[[pa.Table], list[pa.Table]],
    copied_rows: int,
) -> None:
    monkeypatch.setattr("tailerd.formats.delta.log.checkpoint_source.COPIED_ROWS", copied_rows)
    table = TableBuilder(tmp_path, reader_features=[])
    table.create(*(add(f"a{n}") for n in range(5)))
    held = Held(table)
    await held.checkpoint()
    path = checkpoint_of(table.log, 0)
    groups = order(pq.read_table(path))
    with pq.ParquetWriter(path, groups[0].schema) as writer:
        for group in groups:
            writer.write_table(group)
    table.commit(add("b"))
    with pytest.raises(LogCleanedUpError, match=r"was replaced by another writer's checkpoint"):
        await held.checkpoint()
    assert not [*table.log.glob(f"{1:020}.checkpoint*")]
    assert held.snapshot is not None
    with pytest.raises(LogCleanedUpError):
        await live_files(held.reader, held.snapshot)
    with pytest.raises(LogCleanedUpError):
        await count_rows(held.reader, held.snapshot)
    held.snapshot = None
    await held.checkpoint()
    await held.check()
