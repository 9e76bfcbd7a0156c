"""Arrays that tests write, and what tiledb's own time travel says of them."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tiledb

Row = tuple[object, ...]
WORDS = ("", "a", "bb", "å", "zzz")


def create(
    path: Path,
    *,
    is_sparse: int = True,
    has_duplicates: int = False,
    dimensions: int = 1,
    attributes: list[Any] | None = None,
) -> None:
    """Make an array of whole coordinates below 40."""
    dims = [tiledb.Dim(name, domain=(0, 39), tile=7, dtype=np.int32) for name in "xyz"[:dimensions]]
    schema = tiledb.ArraySchema(
        domain=tiledb.Domain(*dims),
        sparse=bool(is_sparse),
        allows_duplicates=bool(has_duplicates),
        attrs=attributes
        or [
            tiledb.Attr("v", dtype=np.int64),
            tiledb.Attr("f", dtype=np.float64),
            tiledb.Attr("n", dtype=np.int32, nullable=True),
            tiledb.Attr("s", dtype=str, var=True),
        ],
    )
    tiledb.Array.create(str(path), schema)


def values(count: int, draw: random.Random) -> dict[str, Any]:
    """Return values of the attributes that `create` makes."""
    floats = [draw.choice((0.0, 1.5, -2.0, float("nan"))) for _ in range(count)]
    numbers = [None if draw.random() < 0.2 else draw.randrange(5) for _ in range(count)]
    return {
        "v": np.array([draw.randrange(6) for _ in range(count)], np.int64),
        "f": np.array(floats, np.float64),
        "n": np.array(numbers, dtype=object),
        "s": np.array([draw.choice(WORDS) for _ in range(count)], dtype=object),
    }


def write(path: Path, time_ms: int | None, cells: Sequence[tuple[int, ...]], data: Any) -> None:
    """Write cells of a sparse array."""
    with tiledb.open(str(path), "w", timestamp=time_ms) as array:
        columns = [np.array(each, np.int32) for each in zip(*cells, strict=True)]
        array[tuple(columns) if len(columns) > 1 else columns[0]] = data


def write_box(path: Path, time_ms: int, box: list[tuple[int, int]], draw: random.Random) -> None:
    """Write a box of a dense array."""
    sizes = [high - low + 1 for low, high in box]
    data = values(int(np.prod(sizes)), draw)
    if len(sizes) > 1:
        # tiledb takes no nulls in boxes of two dimensions.
        data["n"] = np.array([value or 0 for value in data["n"]], np.int32)
    with tiledb.open(str(path), "w", timestamp=time_ms) as array:
        index = tuple(slice(low, high + 1) for low, high in box)
        array[index] = {name: column.reshape(sizes) for name, column in data.items()}


def delete(path: Path, time_ms: int | None, condition: str) -> None:
    """Delete the cells that a condition finds."""
    with tiledb.open(str(path), "d", timestamp=time_ms) as array:
        array.query(cond=condition).submit()


def consolidate(path: Path, mode: str = "fragments", **settings: str) -> None:
    """Merge fragments or commits."""
    # The library takes many seconds to fill its default buffers.
    small = {"sm.mem.total_budget": "50000000"}
    config = tiledb.Config({"sm.consolidation.mode": mode, **small, **settings})
    tiledb.consolidate(str(path), config=config)


def vacuum(path: Path, mode: str = "fragments") -> None:
    """Delete what was merged."""
    tiledb.vacuum(str(path), config=tiledb.Config({"sm.vacuum.mode": mode}))


def state(path: Path, time_ms: int) -> Counter[Row]:
    """Return the rows that tiledb shows at a time: of a dense array those of the written box."""
    with tiledb.open(str(path), timestamp=(0, time_ms)) as array:
        schema = array.schema
        found = array.nonempty_domain()
        if found is None:
            return Counter()
        ranges = tuple(slice(int(low), int(high) + 1) for low, high in _ranges(found))
        cells = array.query(coords=True)[ranges]
        names = [schema.domain.dim(n).name for n in range(schema.domain.ndim)]
        names += [schema.attr(n).name for n in range(schema.nattr)]
        columns = [_plain(cells[name]) for name in names]
    return Counter(zip(*columns, strict=True))


def _ranges(domain: Any) -> Any:
    return domain if isinstance(domain[0], tuple) else (domain,)


def _plain(column: Any) -> list[object]:
    mask = np.ma.getmaskarray(column).reshape(-1)
    return [
        None if gone else plain(value)
        for gone, value in zip(mask, np.ma.getdata(column).reshape(-1).tolist(), strict=True)
    ]


def plain(value: object) -> object:
    """Return a value that equals itself."""
    return "NaN" if isinstance(value, float) and value != value else value


def create_named(path: Path) -> None:
    """Make an array of `id` and `name` that allows duplicates."""
    schema = tiledb.ArraySchema(
        domain=tiledb.Domain(tiledb.Dim("id", domain=(0, 10**6), tile=100, dtype=np.int64)),
        sparse=True,
        allows_duplicates=True,
        attrs=[tiledb.Attr("name", dtype=str, var=True)],
    )
    tiledb.Array.create(str(path), schema)


def create_group(path: Path) -> None:
    """Make an empty group."""
    tiledb.Group.create(str(path))


def write_named(path: Path, time_ms: int | None, ids: list[int]) -> None:
    """Write rows of an array that `create_named` made."""
    names = np.array([f"n{number}" for number in ids], dtype=object)
    with tiledb.open(str(path), "w", timestamp=time_ms) as array:
        array[np.array(ids, np.int64)] = {"name": names}


def forget_times(path: Path, first_ms: int, last_ms: int) -> None:
    """Leave what consolidation before core 2.15 did: one fragment without the cells' times."""
    with tiledb.open(str(path)) as array:
        ids = array.query(coords=True)[:]["id"].tolist()
    shutil.rmtree(path / "__fragments")
    for commit in (path / "__commits").iterdir():
        commit.unlink()
    write_named(path, last_ms, ids)
    [fragment] = (path / "__fragments").iterdir()
    merged = fragment.name.replace(f"__{last_ms}_", f"__{first_ms}_", 1)
    fragment.rename(fragment.with_name(merged))
    commit = path / "__commits" / f"{fragment.name}.wrt"
    commit.rename(commit.with_name(f"{merged}.wrt"))
