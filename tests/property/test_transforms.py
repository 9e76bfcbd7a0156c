"""The changes of a view are those between the views of the versions, for random Delta tables.

- Applied to the view of the version before, they give the view of the version.
- They are the same in a worker process, which gets pickled tasks and knows nothing else.
- Leaving out updates that change nothing does not change the result.
"""

from __future__ import annotations

import asyncio
import pickle
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeMode, ChangeType
from tailerd.changefeed.limits import BatchLimit
from tailerd.formats.base import OpenRequest
from tailerd.formats.detect import read_tasks
from tailerd.storage.stores import Stores
from tailerd.transforms.options import make_view
from tailerd.transforms.view import View
from tests.property.test_changes import HISTORIES
from tests.property.test_changes import History as FeedHistory
from tests.property.test_exact_changes import KEYED, History
from tests.rows.random_tables import Model
from tests.tables.builder import CDF, TableBuilder
from tests.tables.feed import EVERYTHING
from tests.tables.opened import open_delta

Values = tuple[Any, Any, Any]
"""Of `k`, `v` and `p`."""

CONDITIONS: dict[str | None, Callable[[Values], bool]] = {
    None: lambda row: True,
    "k >= 2": lambda row: row[0] is not None and row[0] >= 2,
    "v = 'a' or k is null": lambda row: row[1] == "a" or row[0] is None,
    "p = 'a'": lambda row: row[2] == "a",
    "p is null and v <> 'b'": lambda row: row[2] is None and row[1] != "b",
    "not (k in (0, 1))": lambda row: row[0] is not None and row[0] > 1,
    "p in ('a', 'b') and k < 3 and true": lambda row: (
        row[2] == "a" and row[0] is not None and row[0] < 3
    ),
    "false": lambda row: False,
}
COLUMNS = [None, ["k"], ["v"], ["p", "k"], {"exclude": ["v"]}, {"exclude": ["k", "p"]}]
MASKS: list[tuple[dict[str, Any], dict[str, Callable[[Any], Any]]]] = [
    ({}, {}),
    ({"v": "redact"}, {"v": lambda value: "***"}),
    ({"k": {"truncate": 2}}, {"k": lambda value: value and value // 2 * 2}),
    ({"p": "null"}, {"p": lambda value: None}),
]


def _keep(value: Any) -> Any:
    return value


def views() -> st.SearchStrategy[tuple[View | None, Callable[[Values], tuple[Any, ...] | None]]]:
    """Return views, and what they make of a row; None: it is not in the view."""

    def build(
        where: str | None, columns: Any, mask: Any, unchanged: str, key: list[str]
    ) -> tuple[View | None, Callable[[Values], tuple[Any, ...] | None]]:
        masks, change = mask
        # A key is masked by hashes only.
        key = [name for name in key if name not in masks]
        view = make_view(columns=columns, where=where, mask=masks, unchanged=unchanged, key=key)
        names = ["k", "v", "p"]
        if isinstance(columns, dict):
            shown = [name for name in names if name not in columns["exclude"]]
        else:
            shown = columns or names

        def see(row: Values) -> tuple[Any, ...] | None:
            if not CONDITIONS[where](row):
                return None
            values = dict(zip(names, row, strict=True))
            return tuple(
                None if values[name] is None else change.get(name, _keep)(values[name])
                for name in shown
            )

        return view, see

    return st.builds(
        build,
        st.sampled_from(list(CONDITIONS)),
        st.sampled_from(COLUMNS),
        st.sampled_from(MASKS),
        st.sampled_from(["keep", "drop"]),
        st.sampled_from([[], ["k"]]),
    )


async def changes(
    folder: Path, view: View | None, mode: ChangeMode, *, is_keyed: bool, is_remote: bool
) -> dict[int, list[ChangeBatch]]:
    identity = ("k",) if is_keyed else ()
    source = await open_delta(str(folder), OpenRequest(changes=mode, view=view, identity=identity))
    limit = BatchLimit(max_rows=3)
    at = await source.initial_offset("1")
    found: dict[int, list[ChangeBatch]] = {}
    while (end := await source.latest_offset(at, EVERYTHING)) != at:
        tasks = [task for group in [g async for g in source.plan(at, end)] for task in group.tasks]
        if is_remote:
            batches = read_tasks(pickle.loads(pickle.dumps(tasks)), limit, stores=Stores())
        else:
            batches = source.read_run(tasks, limit)
        for batch in batches if tasks else ():
            found.setdefault(batch.version, []).append(batch)
        at = end
    return found


def difference(batches: Iterable[ChangeBatch]) -> Counter[tuple[Any, ...]]:
    """Return how often each row was added, less how often it was removed."""
    found: Counter[tuple[Any, ...]] = Counter()
    for batch in batches:
        values = zip(*(column.to_pylist() for column in batch.rows.columns), strict=True)
        for kind, row in zip(batch.change_types().to_pylist(), values, strict=True):
            is_new = kind in (ChangeType.INSERT, ChangeType.UPDATE_POSTIMAGE)
            found[row] += 1 if is_new else -1
    return found


def expected(
    before: Counter[Model], after: Counter[Model], see: Callable[[Values], tuple[Any, ...] | None]
) -> Counter[tuple[Any, ...]]:
    found: Counter[tuple[Any, ...]] = Counter()
    for sign, rows in ((-1, before), (1, after)):
        for row, count in rows.items():
            if (shown := see(_values(row))) is not None:
                found[shown] += sign * count
    return found


def _values(row: Model) -> Values:
    k, v, p = (each[-1] if isinstance(each, tuple) else each for each in row)
    return k, v, p


@given(views(), st.integers(1, 3), st.sampled_from([ChangeMode.AUTO, ChangeMode.FILES]), st.data())
@settings(max_examples=150, deadline=None)
def test_changes_of_a_view_lead_from_each_of_its_snapshots_to_the_next(
    seen: tuple[View | None, Callable[[Values], tuple[Any, ...] | None]],
    commits: int,
    mode: ChangeMode,
    data: st.DataObject,
) -> None:
    view, see = seen
    is_keyed = data.draw(st.booleans())
    with tempfile.TemporaryDirectory() as folder:
        history = History(data, KEYED, Path(folder))
        for _ in range(commits):
            history.commit()
        found, again = (
            asyncio.run(changes(Path(folder), view, mode, is_keyed=is_keyed, is_remote=is_remote))
            for is_remote in (False, True)
        )
    for version in range(1, commits + 1):
        before, after = history.snapshots[version - 1 : version + 1]
        batches = found.get(version, [])
        wanted = expected(before, after, see)
        assert _nonzero(difference(batches)) == _nonzero(wanted)
        rows = [batch.to_arrow().to_pylist() for batch in batches]
        assert rows == [batch.to_arrow().to_pylist() for batch in again.get(version, [])]


def _nonzero(rows: Counter[tuple[Any, ...]]) -> dict[tuple[Any, ...], int]:
    return {row: count for row, count in rows.items() if count}


FEED_CONDITIONS: dict[str, Callable[[int, str], bool]] = {
    "id > 3": lambda number, name: number > 3,
    "name like '%1' or id in (0, 5)": lambda number, name: name.endswith("1") or number in (0, 5),
    "name < 'n3'": lambda number, name: name < "n3",
}


@settings(max_examples=60, deadline=None)
@given(
    steps=HISTORIES,
    has_feed=st.booleans(),
    where=st.sampled_from(list(FEED_CONDITIONS)),
    unchanged=st.sampled_from(["keep", "drop"]),
    key=st.sampled_from([[], ["id"]]),
    max_rows=st.integers(1, 3),
)
def test_a_condition_on_a_change_feed_gives_the_feed_of_the_rows_that_meet_it(
    steps: list[tuple[str, int, bool]],
    has_feed: bool,
    where: str,
    unchanged: str,
    key: list[str],
    max_rows: int,
) -> None:
    """An update moves a row into the condition or out of it, with and without change files."""
    meets = FEED_CONDITIONS[where]
    with tempfile.TemporaryDirectory() as folder:
        properties = CDF if has_feed else {}
        features = ["deletionVectors"]
        table = TableBuilder(Path(folder), reader_features=features, properties=properties)
        history = FeedHistory(table, has_feed)
        history.begin()
        for step in steps:
            history.step(*step)
        view = make_view(where=where, unchanged=unchanged, key=key, columns=["name"])
        request = OpenRequest(view=view, identity=tuple(key))
        rows = asyncio.run(_rows_of_feed(folder, request, BatchLimit(max_rows=max_rows)))
    states = [
        Counter({(name,): n for (_, name), n in _meeting(state, meets).items()})
        for state in history.states
    ]
    for version in range(1, len(states)):
        after = Counter(states[version - 1])
        after.update(difference(batch for batch in rows if batch.version == version))
        assert _nonzero(after) == _nonzero(states[version])


def _meeting(
    state: Counter[tuple[int, str]], meets: Callable[[int, str], bool]
) -> Counter[tuple[int, str]]:
    return Counter({row: count for row, count in state.items() if meets(*row)})


async def _rows_of_feed(folder: str, request: OpenRequest, limit: BatchLimit) -> list[ChangeBatch]:
    source = await open_delta(folder, request)
    at = await source.initial_offset("1")
    end = await source.latest_offset(at, EVERYTHING)
    tasks = [task for group in [g async for g in source.plan(at, end)] for task in group.tasks]
    return [batch for task in tasks for batch in source.read(task, limit)]
