"""Every clause of `OffsetStore`, against every store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tailerd.changefeed.change_task import ChangeMode
from tailerd.changefeed.offset import Offset, Phase, Version
from tailerd.changefeed.saved_offset import Beginning, OffsetStore, SavedOffset
from tailerd.storage.base import ObjectStore
from tailerd.storage.memory import MemoryStore
from tests.clouds.buckets import CLOUDS, new_bucket
from tests.contracts.test_sink import ON_KAFKA
from tests.doubles.memory_stores import MemoryOffsetStore
from tests.doubles.owned_state import leased_state, owned_state

if TYPE_CHECKING:
    from tailerd.sinks.kafka.sink import KafkaSink

STORES: dict[str, Callable[[Path], OffsetStore]] = {
    "memory": lambda _: MemoryOffsetStore(),
    "folder": lambda folder: owned_state(folder / "deep").offsets,
}
SERVERS = ("s3_moto", "s3_versitygw", *CLOUDS)


def saved(version: int, changes: ChangeMode = ChangeMode.AUTO) -> SavedOffset:
    return SavedOffset(
        offset=Offset(
            table_id="t", version=Version(version), phase=Phase.SNAPSHOT, position=2**64 - 1
        ),
        changes=changes,
        key_types={"id": "int64"},
        beginning=Beginning(
            offset=Offset(table_id="t", version=Version(version // 2)), has_earlier_rows=True
        ),
    )


KAFKA_STORES = ("kafka-at-least-once", "kafka-exactly-once")


def kafka_sink(request: pytest.FixtureRequest, guarantee: str) -> KafkaSink:
    from tailerd.sinks.kafka.config import KafkaSinkConfig
    from tailerd.sinks.kafka.sink import KafkaSink

    broker, topics = (request.getfixturevalue(name) for name in ("kafka_broker", "topics"))
    offsets = topics.new_name("offsets")
    config = KafkaSinkConfig.model_validate(
        {
            "kind": "kafka",
            "bootstrap_servers": broker.plain,
            "topic": "unused",
            "delivery": guarantee,
            "offsets": "kafka",
            "offsets_topic": offsets,
        }
    )
    return KafkaSink(config, table=offsets)


def bucket_of(request: pytest.FixtureRequest) -> tuple[ObjectStore, str]:
    if request.param == "bucket":
        return MemoryStore(), "/state"
    return new_bucket(request, request.param)


@pytest.fixture(
    params=[
        *STORES,
        "bucket",
        *SERVERS,
        *(pytest.param(name, marks=ON_KAFKA) for name in KAFKA_STORES),
    ]
)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[OffsetStore]:
    if request.param in STORES:
        yield STORES[request.param](tmp_path)
        return
    if request.param == "bucket" or request.param in SERVERS:
        objects, root = bucket_of(request)
        state = leased_state(objects, root)
        async with state.hold():
            yield state.offsets
        return
    sink = kafka_sink(request, request.param.removeprefix("kafka-"))
    assert sink.offsets is not None
    yield sink.offsets
    await sink.aclose()


async def test_a_pipeline_that_never_saved_has_nothing(store: OffsetStore) -> None:
    assert await store.load("orders") is None


async def test_what_was_saved_last_is_loaded_whole(store: OffsetStore) -> None:
    await store.save("orders", saved(3))
    await store.save("orders", saved(4, ChangeMode.CDF))
    assert await store.load("orders") == saved(4, ChangeMode.CDF)


async def test_pipelines_do_not_see_each_other(store: OffsetStore) -> None:
    names = ["a", "a.b", "a-b", "A.json", "x" * 100]
    await asyncio.gather(*(store.save(name, saved(n)) for n, name in enumerate(names)))
    assert [await store.load(name) for name in names] == [saved(n) for n in range(len(names))]


async def test_a_cancelled_save_leaves_the_old_or_the_new_offset(store: OffsetStore) -> None:
    await store.save("orders", saved(1))
    saving = asyncio.create_task(store.save("orders", saved(2)))
    await asyncio.sleep(0)
    saving.cancel()
    await asyncio.wait({saving})
    assert await store.load("orders") in (saved(1), saved(2))
    await store.save("orders", saved(3))
    assert await store.load("orders") == saved(3)
