"""Answers that no repetition changes: dead letters, halves, and reasons to stop."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tailerd.errors import ConfigError, SinkError, SinkRefusedError
from tailerd.telemetry import events
from tests.http.receiver import ACCEPT, Receiver, Reply, running_receiver
from tests.sinks.http.conftest import answer_first, dead_letters, deliver, reject, row_ids
from tests.sinks.http.deliveries import batch, delivery, make_sink, offset


def stored(reported: list[events.Event]) -> events.DeadLettersStored:
    [found] = [each for each in reported if isinstance(each, events.DeadLettersStored)]
    return found


async def test_rejected_events_are_found_and_stored_and_the_others_arrive_in_order(
    receiver: Receiver, tmp_path: Path
) -> None:
    receiver.rule = reject(13, 14, 77, body=b"bad name")
    reported = await deliver(receiver, tmp_path, batch(0, range(100)))
    assert row_ids(receiver) == [n for n in range(100) if n not in (13, 14, 77)]
    letters = dead_letters(tmp_path)
    assert [letter["event"]["data"]["id"] for letter in letters] == [13, 14, 77]
    assert [letter["event"]["id"] for letter in letters] == [letter["id"] for letter in letters]
    about = {(letter["status"], letter["answer"], letter["table"]) for letter in letters}
    assert about == {(422, "bad name", "orders")}
    found = stored(reported)
    assert (found.records, found.error_code, found.table) == (3, "event_rejected", "orders")
    assert found.topic == str(tmp_path / "state/dead_letters/orders.jsonl")


async def test_later_events_of_a_rejected_key_continue(receiver: Receiver, tmp_path: Path) -> None:
    rule = reject(13)
    receiver.rule = lambda request: (
        rule(request) if b'"_commit_version":0' in request.body else ACCEPT
    )
    await deliver(receiver, tmp_path, batch(0, [13]), batch(1, [13]), key=["id"])
    assert [event["data"]["_commit_version"] for event in receiver.events] == [1]
    assert len(dead_letters(tmp_path)) == 1


async def test_an_event_is_a_dead_letter_before_the_next_request(
    receiver: Receiver, tmp_path: Path
) -> None:
    seen: list[int] = []

    def answer(_: object) -> int:
        seen.append(len(dead_letters(tmp_path)))
        return 400

    receiver.rule = answer
    await deliver(receiver, tmp_path, batch(0, range(3)), batch={"max_events": 1})
    assert seen == [0, 1, 2]


async def test_dead_letters_of_a_failed_delivery_are_reported(
    receiver: Receiver, tmp_path: Path
) -> None:
    receiver.rule = answer_first(422, 401)
    reported: list[events.Event] = []
    sink = make_sink(receiver.url, tmp_path / "state", reported, batch={"max_events": 1})
    with pytest.raises(SinkRefusedError):
        await sink.write(delivery(0, batch(0, range(3))))
    assert (stored(reported).records, len(dead_letters(tmp_path))) == (1, 1)
    await sink.aclose()


async def test_the_dead_letters_are_private_and_continue_after_a_torn_line(
    receiver: Receiver, tmp_path: Path
) -> None:
    receiver.rule = reject(1, 2)
    await deliver(receiver, tmp_path, batch(0, [1]))
    path = tmp_path / "state/dead_letters/orders.jsonl"
    assert path.stat().st_mode & 0o777 == 0o600
    with path.open("a") as file:
        file.write('{"table": "ord')
    await deliver(receiver, tmp_path, batch(0, [2]))
    first, torn, second = path.read_text().splitlines()
    assert torn == '{"table": "ord'
    assert [json.loads(line)["event"]["data"]["id"] for line in (first, second)] == [1, 2]


async def test_the_folder_of_configured_dead_letters_keeps_its_rights(
    receiver: Receiver, tmp_path: Path
) -> None:
    receiver.rule = reject(1)
    shared, path = tmp_path / "shared", tmp_path / "shared/letters.jsonl"
    shared.mkdir(mode=0o755)
    await deliver(receiver, tmp_path, batch(0, [1]), dead_letters=str(path))
    assert shared.stat().st_mode & 0o777 == 0o755
    assert json.loads(path.read_text())["status"] == 422


async def test_a_request_that_is_too_large_is_halved(receiver: Receiver, tmp_path: Path) -> None:
    receiver.rule = lambda request: 413 if len(request.events) > 3 else ACCEPT
    await deliver(receiver, tmp_path, batch(0, range(20)))
    assert row_ids(receiver) == list(range(20))
    assert dead_letters(tmp_path) == []
    receiver.rule = reject(4, status=413)
    reported = await deliver(receiver, tmp_path, batch(0, range(3, 6)))
    assert [letter["event"]["data"]["id"] for letter in dead_letters(tmp_path)] == [4]
    assert stored(reported).error_code == "event_too_large"


async def test_on_reject_stop_stops_at_the_event(receiver: Receiver, tmp_path: Path) -> None:
    receiver.rule = reject(5)
    with pytest.raises(SinkRefusedError, match=r"rejected the event table-1/0/0\.5 of orders"):
        await deliver(receiver, tmp_path, batch(0, range(10)), on_reject="stop")
    assert 6 not in row_ids(receiver)
    assert dead_letters(tmp_path) == []


@pytest.mark.parametrize("status", [401, 403, 404, 405, 407, 410, 415])
async def test_an_answer_about_the_endpoint_stops_the_pipeline(
    receiver: Receiver, tmp_path: Path, status: int
) -> None:
    receiver.rule = lambda _: status
    with pytest.raises(SinkRefusedError, match=f"answered {status} ") as caught:
        await deliver(receiver, tmp_path, batch(0, range(10)))
    assert "stop_on" in caught.value.remedy
    assert (dead_letters(tmp_path), len(receiver.posts)) == ([], 1)
    await deliver(receiver, tmp_path, batch(0, [1, 2]), stop_on=[])
    assert [letter["status"] for letter in dead_letters(tmp_path)] == [status] * 2


@pytest.mark.parametrize("status", [301, 302, 304, 307, 308])
async def test_a_redirect_is_an_error_and_not_followed(
    receiver: Receiver, tmp_path: Path, status: int
) -> None:
    with running_receiver() as other:
        receiver.rule = lambda _: Reply(status, {"Location": other.url})
        with pytest.raises(SinkRefusedError, match="redirects are not followed"):
            await deliver(receiver, tmp_path, batch(0, [1]))
        assert other.requests == []


async def test_dead_letters_that_cannot_be_written_fail_the_delivery(
    receiver: Receiver, tmp_path: Path
) -> None:
    receiver.rule = reject(1)
    path = tmp_path / "file"
    sink = make_sink(receiver.url, tmp_path, dead_letters=str(path / "letters"))
    await sink.resume(offset(0))
    path.write_text("a file where a folder should be")
    with pytest.raises(SinkError, match="cannot be written"):
        await sink.write(delivery(0, batch(0, [1])))
    with pytest.raises(ConfigError, match="not of the right kind"):
        await sink.resume(offset(0))
    await sink.aclose()


async def test_healthcheck_asks_for_options_and_posts_nothing(
    receiver: Receiver, tmp_path: Path
) -> None:
    sink = make_sink(receiver.url, tmp_path / "state", bearer_token="token-1")
    await sink.healthcheck()
    [request] = receiver.requests
    assert (request.method, request.headers["Authorization"]) == ("OPTIONS", "Bearer token-1")
    for status in (405, 501, 400):
        receiver.rule = answer_first(status)
        await sink.healthcheck()
    for status, kind in ((404, SinkRefusedError), (302, SinkRefusedError), (503, SinkError)):
        receiver.rule = answer_first(status)
        with pytest.raises(kind, match=str(status)):
            await sink.healthcheck()
    assert receiver.posts == []
    assert not (tmp_path / "state").exists()
    await sink.aclose()


async def test_a_state_in_a_bucket_needs_a_file_for_dead_letters(
    receiver: Receiver, tmp_path: Path
) -> None:
    sink = make_sink(receiver.url, "s3://bucket/state")
    for check in (sink.healthcheck(), sink.resume(offset(0))):
        with pytest.raises(ConfigError, match="`state` is in a bucket"):
            await check
    for name, value in (("on_reject", "stop"), ("dead_letters", str(tmp_path / "letters"))):
        sink = make_sink(receiver.url, "s3://bucket/state", None, **{name: value})
        await sink.healthcheck()
        await sink.aclose()
