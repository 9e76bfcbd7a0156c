"""Checkpoints of random histories, from every kind of checkpoint below, hold the naive state."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.log.log_writer import LogWriter
from tailerd.formats.delta.log.v2_manifest import ManifestKind
from tailerd.storage.local import LocalStore
from tests.doubles.sim_clock import SimClock
from tests.formats.delta.histories import (
    assert_described,
    assert_is,
    live_files,
    write_checkpoint,
)
from tests.formats.delta.log_bodies import remove
from tests.maintenance.written import (
    assert_same,
    checkpoint_actions,
    checkpoint_of,
    expected,
    state_of,
    without_old_removes,
)
from tests.property.test_log_replay import (
    KINDS_WITH_STATS,
    commits,
    paths,
    vectors,
    write,
)
from tests.tables.builder import START_MS, TableBuilder
from tests.tables.naive_log import Action, key_of

DAY = 86_400_000
NOW = START_MS + 10 * DAY
STRUCT_STATS = "classic-struct-stats"

timed_removes = st.builds(
    lambda path, dv, age: remove(path, deletionTimestamp=NOW - age * DAY, **dv),
    paths,
    vectors,
    st.integers(0, 9),
)
histories = st.lists(
    st.builds(
        lambda commit, removes: ([*commit[0], *removes], commit[1], commit[2]),
        commits,
        st.lists(timed_removes, max_size=3),
    ),
    min_size=2,
    max_size=7,
)


def legal(table: TableBuilder, actions: list[Action]) -> list[Action]:
    """Leave out file actions that would be illegal in the table's next commit."""
    live = table.state().adds if table.version >= 0 else {}
    removals = (key_of(action["remove"]) for action in actions if "remove" in action)
    # Of several removals of a path, the first one stays.
    removed = set({path: (path, vector) for path, vector in reversed([*removals])}.values())
    seen: set[tuple[str, str]] = set()
    kept = []
    for action in actions:
        [(kind, body)] = action.items()
        if kind in ("add", "remove"):
            path, vector = key_of(body)
            others = {key for key in live if key[0] == path and key[1] != vector}
            if (kind, path) in seen or (kind == "add" and others - removed):
                continue
            seen.add((kind, path))
        kept.append(action)
    return kept


@pytest.mark.full
@pytest.mark.parametrize("copied_rows", [1, 100], ids=["copied", "decoded"])
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), history=histories)
def test_checkpoints_of_a_random_history_hold_the_naive_state(
    copied_rows: int, data: st.DataObject, history: list[Any]
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("tailerd.formats.delta.log.checkpoint_source.COPIED_ROWS", copied_rows)
        policy = data.draw(st.sampled_from(["classic", "v2"]))
        properties = {"delta.checkpointPolicy": policy}
        table = TableBuilder(
            Path(folder),
            reader_features=["deletionVectors", "v2Checkpoint"],
            properties=properties,
        )
        for version, (actions, changed, protocol) in enumerate(history):
            if changed is not None:
                changed["configuration"] = properties
            write(table, version, (legal(table, actions), changed, protocol))
        below = data.draw(st.none() | st.integers(0, table.version - 1))
        if below is not None:
            kinds = [kind for kind in KINDS_WITH_STATS if kind != STRUCT_STATS]
            write_checkpoint(table, data.draw(st.sampled_from(kinds)), below)
        asyncio.run(
            check(
                table,
                below,
                data.draw(st.sampled_from(["each", "held"])),
                data.draw(st.sampled_from(["json", "parquet"])),
            )
        )


async def check(table: TableBuilder, below: int | None, way: str, manifest: ManifestKind) -> None:
    """Write a checkpoint of each later version: from a new snapshot, or one that is carried on."""
    reader = LogReader(LocalStore(), str(table.folder))
    writer = LogWriter(reader, clock=SimClock(NOW))
    snapshot = await reader.open(below or 0)
    for version in range((below or 0) + 1, table.version + 1):
        if way == "each":
            snapshot = await reader.open(version)
        else:
            file = await reader.commit_file(version)
            assert file is not None
            snapshot = snapshot.advance((await reader.read_commit(file)).commit)
        result = await writer.write_checkpoint(snapshot, manifest=manifest)
        assert result.rebased is not None
        snapshot = result.rebased
        state = table.state(version)
        found = state_of(checkpoint_actions(table.log, version), version)
        assert found.removes.keys() <= state.removes.keys()
        assert_same(without_old_removes(found, NOW - 7 * DAY), expected(state, now_ms=NOW))
        assert_is(snapshot, state)
        assert_described(await live_files(reader, snapshot), state)
        again = await LogReader(LocalStore(), str(table.folder)).open(version)
        assert again.checkpoint_version == version
        assert_described(await live_files(reader, again), state)
        if way == "each" and version % 2:
            checkpoint_of(table.log, version).unlink()
