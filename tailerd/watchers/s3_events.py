"""Parse queue messages about new S3 objects. Pure.

Three envelopes are supported: the bucket's own notification (`Records`), an SNS message around it
(`Type: Notification`, without raw delivery), and an EventBridge event (`detail-type`). They may be
nested if a topic forwards.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import unquote_plus

from tailerd.watchers.base import Names

_DEEPEST = 3
_CREATED = ("ObjectCreated:", "s3:ObjectCreated:")


@dataclass(frozen=True, slots=True)
class ObjectCreated:
    """An object that was created.

    Attributes:
        bucket: Name of the bucket.
        key: Its key, not URL-encoded.
    """

    bucket: str
    key: str


@dataclass(frozen=True, slots=True)
class CommitEvent:
    """A commit file that was created.

    Attributes:
        folder: `bucket/.../_delta_log`.
        version: The version in its name.
    """

    folder: str
    version: int


def created_objects(body: str) -> tuple[ObjectCreated, ...] | None:
    """Return the objects that a message reports as created; its other events are ignored.

    Returns:
        None if the body is not one of the envelopes, or is malformed.
    """
    return _parse_text(body, _DEEPEST)


def commit_events(objects: Iterable[ObjectCreated], folders: Names) -> Iterator[CommitEvent]:
    """Yield the objects that are commits in one of the folders (`bucket/...`)."""
    for each in objects:
        folder, _, name = f"{each.bucket}/{each.key}".rpartition("/")
        if folder in folders and (version := folders[folder](name)) is not None:
            yield CommitEvent(folder, version)


def _parse_text(text: str, depth: int) -> tuple[ObjectCreated, ...] | None:
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or depth == 0:
        return None
    if value.get("Type") == "Notification":
        inner = value.get("Message")
        return _parse_text(inner, depth - 1) if isinstance(inner, str) else None
    if "detail-type" in value:
        return _parse_event_bridge(value)
    if value.get("Event") == "s3:TestEvent":
        # S3 sends this when a notification is configured.
        return ()
    return _parse_records(value.get("Records"))


def _parse_records(records: object) -> tuple[ObjectCreated, ...] | None:
    if not isinstance(records, list):
        return None
    found = []
    for record in records:
        what, about = _text(record, "eventName"), _inner(record, "s3")
        bucket, key = _text(_inner(about, "bucket"), "name"), _text(_inner(about, "object"), "key")
        if what is None or not bucket or not key:
            return None
        if what.startswith(_CREATED):
            found.append(ObjectCreated(bucket, unquote_plus(key)))
    return tuple(found)


def _parse_event_bridge(event: Mapping[str, object]) -> tuple[ObjectCreated, ...] | None:
    about = _inner(event, "detail")
    bucket, key = _text(_inner(about, "bucket"), "name"), _text(_inner(about, "object"), "key")
    if not bucket or not key:
        return None
    if event["detail-type"] != "Object Created":
        return ()
    # EventBridge does not URL-encode keys.
    return (ObjectCreated(bucket, key),)


def _inner(value: object, name: str) -> object:
    return value.get(name) if isinstance(value, dict) else None


def _text(value: object, name: str) -> str | None:
    found = _inner(value, name)
    return found if isinstance(found, str) else None
