"""What Event Grid and Google Cloud Storage send, and what they do not."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailerd.watchers.azure_queue import created_blobs
from tailerd.watchers.pubsub import created_objects
from tailerd.watchers.queue import ObjectCreated
from tests.clouds.queues import event_grid

KEYS = st.text(min_size=1, max_size=40).filter(lambda key: key.isprintable())
COMMIT = ObjectCreated("lake", "t/_delta_log/00000000000000000001.json")


def cloud_event(**fields: Any) -> str:
    about = {
        "specversion": "1.0",
        "type": "Microsoft.Storage.BlobCreated",
        "subject": f"/blobServices/default/containers/{COMMIT.bucket}/blobs/{COMMIT.key}",
        "data": {"api": "FlushWithClose"},
    }
    return json.dumps(about | fields)


@given(key=KEYS)
def test_event_grid_names_the_blob_as_it_is(key: str) -> None:
    assert created_blobs(event_grid("lake", key)) == (ObjectCreated("lake", key),)


def test_both_schemas_are_read_encoded_or_not_one_or_several() -> None:
    assert created_blobs(cloud_event()) == (COMMIT,)
    assert created_blobs(base64.b64encode(cloud_event().encode()).decode()) == (COMMIT,)
    assert created_blobs(f"[{cloud_event()},{cloud_event()}]") == (COMMIT, COMMIT)


def test_a_renamed_blob_is_named_by_its_new_name() -> None:
    url = "https://x.dfs.core.windows.net/lake/t/_delta_log/00000000000000000001.json"
    body = cloud_event(
        type="Microsoft.Storage.BlobRenamed",
        subject="/blobServices/default/containers/lake/blobs/t/_delta_log/.tmp",
        data={"sourceUrl": "https://x/lake/t/_delta_log/.tmp", "destinationUrl": url},
    )
    assert created_blobs(body) == (COMMIT,)


def test_other_events_are_none_and_other_texts_no_events() -> None:
    assert created_blobs(cloud_event(type="Microsoft.Storage.BlobDeleted")) == ()
    validation = {"eventType": "Microsoft.EventGrid.SubscriptionValidationEvent", "data": {}}
    assert created_blobs(json.dumps(validation)) == ()
    for body in ("", "{", "7", "[7]", "no", "{}", '{"eventType": 7}', cloud_event(subject="x")):
        assert created_blobs(body) is None


@given(body=st.text(max_size=60))
def test_any_text_is_events_or_none(body: str) -> None:
    found = created_blobs(body)
    assert found is None or all(isinstance(each, ObjectCreated) for each in found)


@given(key=KEYS)
def test_a_finished_object_is_created(key: str) -> None:
    about = {"eventType": "OBJECT_FINALIZE", "bucketId": "lake", "objectId": key}
    assert created_objects(about) == (ObjectCreated("lake", key),)
    assert created_objects(about | {"eventType": "OBJECT_DELETE"}) == ()


@pytest.mark.parametrize("missing", ["eventType", "bucketId", "objectId"])
def test_attributes_of_others_are_no_notification(missing: str) -> None:
    about = {"eventType": "OBJECT_FINALIZE", "bucketId": "lake", "objectId": "k"}
    assert created_objects({k: v for k, v in about.items() if k != missing}) is None
