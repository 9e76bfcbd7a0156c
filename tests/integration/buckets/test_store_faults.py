"""A store of buckets meets each fault: on every server, and who wins where an answer was lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tailerd.errors import (
    AccessDeniedError,
    BucketMissingError,
    ClockSkewError,
    CredentialsExpiredError,
    FileExistsAlreadyError,
    FileMissingError,
    StorageError,
)
from tailerd.storage.base import ObjectStore
from tests.clouds.buckets import BucketServer
from tests.s3.proxy import Fault, FaultProxy, Seen

PASSING = [
    *(Fault.DELAY, Fault.REFUSE, Fault.RESET, Fault.LOSE_ANSWER, Fault.TRUNCATE),
    *(Fault.INTERNAL, Fault.SLOW_DOWN, Fault.EXPIRED),
]
"""Faults that another attempt gets over."""

BODY = b"0123456789" * 20_000

Operation = Callable[[ObjectStore, str], Awaitable[object]]


async def _list(store: ObjectStore, folder: str) -> object:
    return [meta.name async for meta in store.list_from(folder)]


async def _get(store: ObjectStore, folder: str) -> object:
    return await store.get(f"{folder}/a")


async def _range(store: ObjectStore, folder: str) -> object:
    return await store.get(f"{folder}/a", 5, 10)


async def _head(store: ObjectStore, folder: str) -> object:
    return (await store.head(f"{folder}/a")).size_bytes


async def _open(store: ObjectStore, folder: str) -> object:
    with await asyncio.to_thread(store.open_input, f"{folder}/a") as source:
        return await asyncio.to_thread(source.read)


async def _put(store: ObjectStore, folder: str) -> object:
    await store.put(f"{folder}/b", b"b")
    return await store.get(f"{folder}/b")


async def _put_if_absent(store: ObjectStore, folder: str) -> object:
    await store.put(f"{folder}/c", b"c", if_absent=True)
    return await store.get(f"{folder}/c")


async def _delete(store: ObjectStore, folder: str) -> object:
    await store.delete(f"{folder}/d")
    return await _list(store, folder)


OPERATIONS: dict[str, tuple[Operation, object]] = {
    "list": (_list, ["a", "d"]),
    "get": (_get, BODY),
    "range": (_range, BODY[5:15]),
    "head": (_head, len(BODY)),
    "open": (_open, BODY),
    "put": (_put, b"b"),
    "put-if-absent": (_put_if_absent, b"c"),
    "delete": (_delete, ["a"]),
}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("fault", PASSING, ids=lambda fault: fault.value)
async def test_each_request_that_fails_once_is_done_all_the_same(
    store: ObjectStore, proxy: FaultProxy, bucket: str, operation: str, fault: Fault
) -> None:
    folder = f"{bucket}/folder"
    await store.put(f"{folder}/a", BODY)
    await store.put(f"{folder}/d", b"d")
    proxy.forget()
    proxy.delay_seconds = 0.1
    proxy.fail_nth(1, fault)
    work, expected = OPERATIONS[operation]
    assert await work(store, folder) == expected
    assert proxy.requests[0].fault is fault


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Fault.DENY, AccessDeniedError),
        (Fault.EXPIRED, CredentialsExpiredError),
        (Fault.SKEW, ClockSkewError),
    ],
    ids=lambda value: getattr(value, "value", ""),
)
async def test_a_refusal_that_lasts_is_told_at_once_with_its_way_out(
    store: ObjectStore, proxy: FaultProxy, bucket: str, fault: Fault, kind: type[StorageError]
) -> None:
    await store.put(f"{bucket}/a", b"a")
    proxy.forget()
    proxy.choose = lambda seen: fault
    for requested in (store.get(f"{bucket}/a"), store.put(f"{bucket}/a", b"b")):
        with pytest.raises(kind) as caught:
            await requested
        assert store.format_url(f"{bucket}/a") in str(caught.value)
        assert caught.value.remedy
    assert len(proxy.requests) <= 4


async def test_a_server_that_stays_broken_is_given_up(
    server: BucketServer, proxy: FaultProxy, bucket: str
) -> None:
    impatient = server.store(server.url_at(proxy.port), attempts=3)
    proxy.choose = lambda seen: Fault.SLOW_DOWN
    with pytest.raises(StorageError, match=r"after 3 attempts: .*SlowDown"):
        await impatient.get(f"{bucket}/a")
    assert len(proxy.requests) == 3
    proxy.forget()
    await impatient.put(f"{bucket}/a", b"well again")
    assert await impatient.get(f"{bucket}/a") == b"well again"


async def test_a_conditional_put_whose_answer_was_lost_knows_that_it_won(
    store: ObjectStore, proxy: FaultProxy, bucket: str
) -> None:
    await store.put(f"{bucket}/probed", b"", if_absent=True)
    proxy.fail_nth(1, Fault.LOSE_ANSWER, kind="put")
    await store.put(f"{bucket}/a", b"mine", if_absent=True)
    assert await store.get(f"{bucket}/a") == b"mine"


async def test_a_conditional_put_tried_again_does_not_take_anothers_win_for_its_own(
    store: ObjectStore, proxy: FaultProxy, bucket: str
) -> None:
    await store.put(f"{bucket}/a", b"same bytes", if_absent=True)
    proxy.fail_nth(1, Fault.REFUSE, kind="put")
    with pytest.raises(FileExistsAlreadyError):
        await store.put(f"{bucket}/a", b"same bytes", if_absent=True)


async def test_a_conditional_put_lost_to_a_file_that_is_gone_again_was_lost_nevertheless(
    store: ObjectStore, proxy: FaultProxy, bucket: str, server: BucketServer
) -> None:
    await store.put(f"{bucket}/a", b"theirs", if_absent=True)
    deleting = server.store()

    def delete_before_the_question(seen: Seen) -> None:
        if seen.kind == "head":
            asyncio.run_coroutine_threadsafe(deleting.delete(f"{bucket}/a"), loop).result(10)

    loop = asyncio.get_running_loop()

    proxy.choose = delete_before_the_question
    with pytest.raises(FileExistsAlreadyError):
        await store.put(f"{bucket}/a", b"mine", if_absent=True)


@pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.REFUSE, Fault.RESET, Fault.INTERNAL])
async def test_of_racing_writers_exactly_one_wins_whatever_is_lost(
    store: ObjectStore, proxy: FaultProxy, bucket: str, fault: Fault
) -> None:
    await store.put(f"{bucket}/probed", b"", if_absent=True)
    for turn in range(5):
        proxy.fail_every(2 + turn % 3, fault)

        async def attempt(number: int, path: str = f"{bucket}/{turn}") -> int | None:
            try:
                await store.put(path, str(number).encode(), if_absent=True)
            except FileExistsAlreadyError:
                return None
            return number

        outcomes = await asyncio.gather(*(attempt(number) for number in range(6)))
        proxy.forget()
        [winner] = [number for number in outcomes if number is not None]
        assert await store.get(f"{bucket}/{turn}") == str(winner).encode()


async def test_a_bucket_that_is_not_there_is_told_apart_from_a_missing_file(
    store: ObjectStore, bucket: str
) -> None:
    with pytest.raises(FileMissingError):
        await store.get(f"{bucket}/nothing")
    with pytest.raises(BucketMissingError, match=r"bucket .*b-not-there.* does not exist"):
        await store.get("b-not-there/a")
    with pytest.raises(BucketMissingError):
        await _list(store, "b-not-there/a")
    with pytest.raises(BucketMissingError):
        await store.put("b-not-there/a", b"")


async def test_a_key_that_no_bucket_can_have_does_not_exist(
    store: ObjectStore, bucket: str
) -> None:
    for _ in range(2):
        with pytest.raises(FileMissingError, match=r"a\\udcff does not exist: names .* UTF-8"):
            await store.get(f"{bucket}/a\udcff")
        with pytest.raises(FileMissingError):
            await asyncio.to_thread(store.open_input, f"{bucket}/a\udcff")
        await store.put(f"{bucket}/b", b"b")
        assert await store.get(f"{bucket}/b") == b"b"
