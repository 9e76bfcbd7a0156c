"""Delta Spark's row ids: the updates that ours pairs are those of rows with one id."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

import pytest

from tailerd.changefeed.limits import BatchLimit
from tests.maintenance.delta_spark import DeltaSpark
from tests.property.test_exact_changes import changes_by_version

pytestmark = [pytest.mark.spark, pytest.mark.slow]

Rows = dict[int, dict[str, Any]]


@pytest.mark.full
def test_updates_are_the_rows_that_kept_their_ids(delta_spark: DeltaSpark, tmp_path: Path) -> None:
    name = f"delta.`{tmp_path}`"
    statements = [
        f"CREATE TABLE {name} (k BIGINT, v STRING, p STRING) USING delta PARTITIONED BY (p)"
        " TBLPROPERTIES ('delta.enableDeletionVectors' = 'false')",
        f"INSERT INTO {name} SELECT id, CONCAT('v', id), CAST(id % 3 AS STRING) FROM RANGE(60)",
        # The ids of these rows come later than they.
        f"ALTER TABLE {name} SET TBLPROPERTIES ('delta.enableRowTracking' = 'true')",
        f"UPDATE {name} SET v = 'new' WHERE k % 7 = 0",
        f"ALTER TABLE {name} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",
        f"UPDATE {name} SET v = v WHERE k % 5 = 0",
        f"UPDATE {name} SET p = 'moved' WHERE k % 11 = 0",
        f"DELETE FROM {name} WHERE k % 13 = 0",
        f"MERGE INTO {name} t USING (SELECT id FROM RANGE(50, 70)) s ON t.k = s.id"
        " WHEN MATCHED AND t.k % 2 = 0 THEN UPDATE SET v = 'merged' WHEN MATCHED THEN DELETE"
        " WHEN NOT MATCHED THEN INSERT (k, v, p) VALUES (s.id, 'fresh', '0')",
        f"OPTIMIZE {name}",
        f"RESTORE TABLE {name} TO VERSION AS OF 4",
    ]
    versions = []
    for text in statements:
        delta_spark.ask("change", text=text, path=str(tmp_path))
        versions.append(max(int(f.stem) for f in (tmp_path / "_delta_log").glob("*0*.json")))
    found = asyncio.run(changes_by_version(tmp_path, versions[-1], BatchLimit()))
    paired = []
    by_version = list_rows(delta_spark, name, versions[2:])
    after = by_version[versions[2]]
    for end, text in zip(versions[3:], statements[3:], strict=True):
        before, after = after, by_version[end]
        changes = [
            (kind, row)
            for batch in found[end - 1]
            for kind, row in zip(
                batch.change_types().to_pylist(), batch.rows.to_pylist(), strict=True
            )
        ]
        # The reference does not say that RESTORE kept the ids: its rows are compared by value.
        both = before.keys() & after.keys() if not text.startswith("RESTORE") else set()
        updated = sorted((i for i in both if before[i] != after[i]), key=lambda i: after[i]["k"])
        pairs = [
            (old, new)
            for (kind, old), (_, new) in itertools.pairwise(changes)
            if kind == "update_preimage"
        ]
        expected = [(before[i], after[i]) for i in updated]
        assert sorted(pairs, key=lambda pair: pair[1]["k"]) == expected, text
        for kind, old, new in (("delete", before, after), ("insert", after, before)):
            gone = [row for i, row in old.items() if i not in both and row not in new.values()]
            alone = sorted(row["k"] for row in gone)
            assert sorted(row["k"] for k, row in changes if k == kind) == alone, text
        paired += [text.split()[0]] if pairs else []
    assert paired == ["UPDATE", "UPDATE", "MERGE"]


def list_rows(delta: DeltaSpark, name: str, versions: list[int]) -> dict[int, Rows]:
    """Return version -> its rows by the ids that the reference gives them."""
    # One statement: the reference takes longer to plan one than to read these tables.
    text = " UNION ALL ".join(
        f"SELECT {version} AS version, _metadata.row_id AS i, * FROM {name} VERSION AS OF {version}"
        for version in versions
    )
    found: dict[int, Rows] = {version: {} for version in versions}
    for row in delta.ask("sql", text=text):
        found[row.pop("version")][row.pop("i")] = row
    return found
