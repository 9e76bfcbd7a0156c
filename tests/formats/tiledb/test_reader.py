"""Changes of ranges, put in the order that one reading has; what waits lies on disk."""

from __future__ import annotations

import random
import resource
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tailerd.changefeed.change_task import ChangeType
from tailerd.errors import StorageError
from tailerd.formats.tiledb.reader import in_order
from tailerd.formats.tiledb.step_rows import ChangedRows

ORDER = ("delete", "update_preimage", "insert")


def changed(kind: str, ids: list[int]) -> ChangedRows:
    rows = pa.record_batch({"id": pa.array(ids, pa.int64())})
    if kind == "update_preimage":
        twos = [ChangeType.UPDATE_PREIMAGE.value, ChangeType.UPDATE_POSTIMAGE.value]
        return ChangedRows(rows, pa.array(twos * (len(ids) // 2), pa.string()), together=2)
    return ChangedRows(rows, pa.array([kind] * len(ids), pa.string()))


def flat(found: Iterator[ChangedRows]) -> list[tuple[str, int, int]]:
    return [
        (kind, number, each.together)
        for each in found
        for kind, number in zip(each.kinds.to_pylist(), each.rows["id"].to_pylist(), strict=True)
    ]


@pytest.mark.parametrize("number", range(20))
def test_kinds_come_one_after_the_other_and_ranges_in_their_order(number: int) -> None:
    draw = random.Random(number)
    ranges = [
        [changed(kind, [draw.randrange(9) for _ in range(2 * draw.randrange(3))]) for kind in ORDER]
        for _ in range(draw.randrange(4))
    ]
    expected = [row for at in range(3) for parts in ranges for row in flat(iter([parts[at]]))]
    assert flat(in_order(ranges)) == expected


def test_deletes_do_not_wait() -> None:
    requested = []

    def ranges() -> Iterator[list[ChangedRows]]:
        for number in range(3):
            requested.append(number)
            yield [changed("delete", [number]), changed("insert", [number])]

    assert next(in_order(ranges())).rows["id"].to_pylist() == [0]
    assert requested == [0]


def test_a_folder_that_is_not_there_and_a_full_one_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(StorageError, match=r"temporary folder.*No such file"):
        list(in_order([]))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(StorageError, match=r"temporary folder.*too large"):
            list(in_order([[changed("insert", list(range(1000)))]]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
