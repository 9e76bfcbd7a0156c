"""Whatever the envelope and the key, a commit is found; whatever else comes, nothing breaks."""

from __future__ import annotations

import json
from urllib.parse import quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailerd.watchers.base import numbered_name
from tailerd.watchers.queue import CommitEvent, ObjectCreated, commit_events
from tailerd.watchers.sqs import created_objects

KEYS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
BUCKETS = st.from_regex(r"[a-z0-9][a-z0-9.-]{1,30}[a-z0-9]", fullmatch=True)
OBJECTS = st.builds(ObjectCreated, BUCKETS, KEYS)
WORDS = ["Records", "Type", "Message", "detail-type", "detail", "s3", "bucket", "object", "key"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(WORDS) | st.text(max_size=3),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


def record(each: ObjectCreated, event: str = "ObjectCreated:Put") -> dict[str, object]:
    return {
        "eventSource": "aws:s3",
        "eventName": event,
        "s3": {
            "bucket": {"name": each.bucket, "arn": f"arn:aws:s3:::{each.bucket}"},
            "object": {"key": quote_plus(each.key), "size": 7, "eTag": "0"},
        },
    }


def direct(*objects: ObjectCreated) -> str:
    return json.dumps({"Records": [record(each) for each in objects]})


def through_topic(body: str) -> str:
    return json.dumps({"Type": "Notification", "TopicArn": "arn:aws:sns:x:1:t", "Message": body})


def through_event_bridge(each: ObjectCreated, detail_type: str = "Object Created") -> str:
    detail = {"version": "0", "bucket": {"name": each.bucket}, "object": {"key": each.key}}
    about = {"version": "0", "source": "aws.s3", "detail-type": detail_type}
    return json.dumps({**about, "detail": detail})


@given(st.lists(OBJECTS, max_size=4))
def test_a_buckets_own_message_tells_of_all_its_objects(objects: list[ObjectCreated]) -> None:
    assert created_objects(direct(*objects)) == tuple(objects)


@given(st.lists(OBJECTS, max_size=4))
def test_a_topic_wraps_the_same_message(objects: list[ObjectCreated]) -> None:
    assert created_objects(through_topic(direct(*objects))) == tuple(objects)


@given(OBJECTS)
def test_event_bridge_tells_of_one_object_whose_key_is_not_encoded(each: ObjectCreated) -> None:
    assert created_objects(through_event_bridge(each)) == (each,)
    assert created_objects(through_topic(through_event_bridge(each))) == (each,)


@given(JSON)
def test_any_json_is_read_or_not_understood(value: object) -> None:
    for body in (json.dumps(value), through_topic(json.dumps(value))):
        found = created_objects(body)
        assert found is None or all(isinstance(each, ObjectCreated) for each in found)


@given(st.text(max_size=50))
def test_any_text_is_read_or_not_understood(text: str) -> None:
    assert created_objects(text) in (None, ())


@given(OBJECTS, st.integers(0, 10**20 - 1))
def test_a_commit_is_a_hint_for_its_own_folder_only(each: ObjectCreated, version: int) -> None:
    table = each.key.strip("/") or "t"
    commit = ObjectCreated(each.bucket, f"{table}/_delta_log/{version:020}.json")
    folder = f"{each.bucket}/{table}/_delta_log"
    assert list(commit_events([commit], {folder: numbered_name})) == [CommitEvent(folder, version)]
    assert not list(
        commit_events(
            [commit], dict.fromkeys((f"{each.bucket}/{table}", "x/_delta_log"), numbered_name)
        )
    )


@pytest.mark.parametrize(
    "name",
    [
        "part-0.parquet",
        "_last_checkpoint",
        "00000000000000000010.checkpoint.parquet",
        "00000000000000000010.crc",
        "00000000000000000001.00000000000000000010.compacted.json",
        "0000000000000000001.json",
        "٠" * 20 + ".json",
        "_sidecars/00000000000000000010.json",
    ],
)
def test_what_is_no_commit_is_no_hint(name: str) -> None:
    objects = created_objects(direct(ObjectCreated("lake", f"t/_delta_log/{name}")))
    assert objects is not None
    assert not list(commit_events(objects, {"lake/t/_delta_log": numbered_name}))


def test_the_test_message_of_a_new_notification_tells_of_nothing() -> None:
    body = json.dumps({"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "lake"})
    assert created_objects(body) == ()
    assert created_objects(through_topic(body)) == ()


def test_objects_that_were_removed_are_no_news() -> None:
    gone = ObjectCreated("lake", "t/_delta_log/00000000000000000001.json")
    assert created_objects(json.dumps({"Records": [record(gone, "ObjectRemoved:Delete")]})) == ()
    assert created_objects(through_event_bridge(gone, "Object Deleted")) == ()


def test_names_with_a_prefix_as_other_servers_send_them_are_read() -> None:
    each = ObjectCreated("lake", "t/_delta_log/00000000000000000001.json")
    body = json.dumps({"Records": [record(each, "s3:ObjectCreated:Put")]})
    assert created_objects(body) == (each,)


@pytest.mark.parametrize("body", ["", "{", "[]", "1", "{}", '{"Records": 1}', '{"Records": [{}]}'])
def test_a_body_that_is_no_envelope_is_not_understood(body: str) -> None:
    assert created_objects(body) is None


def test_envelopes_within_envelopes_without_end_are_not_understood() -> None:
    body = direct(ObjectCreated("lake", "k"))
    for _ in range(20):
        body = through_topic(body)
    assert created_objects(body) is None
