"""What maintenance wrote, read without tailerd: action by action."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.tables.naive_log import Action, NaiveState, key_of

MAPS = {"partitionValues", "tags", "configuration", "options"}
LEFT_OUT_OF_REMOVES = {"stats", "tags", "clusteringProvider"}
OF_COLUMNS = {"stats_parsed", "partitionValues_parsed"}


def plain(value: Any, name: str = "") -> Any:
    """Return an Arrow value as JSON has it: no nulls, maps as objects."""
    if name in MAPS and isinstance(value, list | dict):
        return dict(value)
    if isinstance(value, dict):
        return {key: plain(item, key) for key, item in value.items() if item is not None}
    return value


def parquet_actions(path: Path) -> list[Action]:
    found = []
    for row in pq.ParquetFile(path).read().to_pylist():
        [(kind, body)] = [(kind, body) for kind, body in row.items() if body is not None]
        found.append({kind: plain(body)})
    return found


def checkpoint_of(log: Path, version: int) -> Path:
    """Return the one checkpoint of a version."""
    [path] = log.glob(f"{version:020}.checkpoint*")
    return path


def checkpoint_actions(log: Path, version: int) -> list[Action]:
    """Return the actions of a checkpoint, sidecars resolved."""
    path = checkpoint_of(log, version)
    if path.suffix == ".parquet":
        actions = parquet_actions(path)
    else:
        actions = [json.loads(line) for line in path.read_text().splitlines()]
    found = []
    for action in actions:
        if "sidecar" in action:
            sidecar = log / "_sidecars" / action["sidecar"]["path"]
            assert sidecar.stat().st_size == action["sidecar"]["sizeInBytes"]
            found += parquet_actions(sidecar)
        elif "checkpointMetadata" in action:
            assert action == {"checkpointMetadata": {"version": version}}
        else:
            found.append(action)
    return found


def state_of(actions: list[Action], version: int) -> NaiveState:
    """Return checkpoint actions as a state; each action may be there once."""
    state = NaiveState(version=version)
    for action in actions:
        [(kind, body)] = action.items()
        match kind:
            case "add":
                once(state.adds, key_of(body), body)
            case "remove":
                once(state.removes, key_of(body), body)
            case "txn":
                once(state.transactions, body["appId"], body)
            case "domainMetadata":
                once(state.domains, body["domain"], body)
            case "protocol":
                assert state.protocol is None
                state.protocol = body
            case "metaData":
                assert state.metadata is None
                state.metadata = body
            case _:
                raise AssertionError(f"{kind} in a checkpoint")
    assert not state.adds.keys() & state.removes.keys()
    return state


def once(known: dict[Any, Action], key: Any, body: Action) -> None:
    assert key not in known, f"{key} twice"
    known[key] = body


def expected(state: NaiveState, *, now_ms: int, retention_ms: int = 7 * 86_400_000) -> NaiveState:
    """Return what a checkpoint of a replayed state must hold."""

    def clean(body: Action, left_out: set[str] = frozenset()) -> Action:  # type: ignore[assignment]
        kept = {k: v for k, v in plain(body).items() if k not in left_out}
        return {**kept, "dataChange": False}

    assert state.protocol is not None
    assert state.metadata is not None
    return NaiveState(
        version=state.version,
        protocol=plain(state.protocol),
        metadata=plain(state.metadata),
        adds={key: clean(body) for key, body in state.adds.items()},
        removes={
            key: clean(body, LEFT_OUT_OF_REMOVES)
            for key, body in state.removes.items()
            if (body.get("deletionTimestamp") or 0) > now_ms - retention_ms
        },
        transactions={key: plain(body) for key, body in state.transactions.items()},
        domains={k: plain(body) for k, body in state.domains.items() if not body.get("removed")},
    )


def without_old_removes(found: NaiveState, after_ms: int) -> NaiveState:
    """Leave out expired removes, which a sidecar that is named again may still have."""
    kept = {k: v for k, v in found.removes.items() if v["deletionTimestamp"] > after_ms}
    return replace(found, removes=kept)


def assert_same(found: NaiveState, wanted: NaiveState) -> None:
    """Compare states, action by action, so that a difference can be read."""
    assert found.version == wanted.version
    assert found.protocol == wanted.protocol
    assert {"format": {"provider": "parquet", "options": {}}, **(found.metadata or {})} == {
        "format": {"provider": "parquet", "options": {}},
        **(wanted.metadata or {}),
    }
    assert found.transactions == wanted.transactions
    assert found.domains == wanted.domains
    assert found.adds.keys() == wanted.adds.keys()
    for key, body in wanted.adds.items():
        assert {k: v for k, v in found.adds[key].items() if k not in OF_COLUMNS} == body
    assert found.removes == wanted.removes
