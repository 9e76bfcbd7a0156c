"""Actions and bodies of log files, as short as a test can say them."""

from __future__ import annotations

import json
from typing import Any

from tailerd.formats.delta.protocol.commit_file import Commit, scan_commit
from tests.tables.naive_log import Action

SCHEMA = json.dumps(
    {
        "type": "struct",
        "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}],
    }
)

PROTOCOL: Action = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}


def metadata(**more: Any) -> Action:
    """Return a `metaData` action of one column."""
    return {"metaData": {"id": "t", "schemaString": SCHEMA, "partitionColumns": [], **more}}


def add(path: str, **more: Any) -> Action:
    """Return an `add` action of ten bytes."""
    body = {"path": path, "partitionValues": {}, "size": 10, "modificationTime": 1}
    return {"add": {**body, "dataChange": True, **more}}


def remove(path: str, **more: Any) -> Action:
    """Return a `remove` action."""
    return {"remove": {"path": path, "dataChange": True, "deletionTimestamp": 1, **more}}


def cdc(path: str, **more: Any) -> Action:
    """Return a `cdc` action of ten bytes."""
    body = {"path": path, "partitionValues": {}, "size": 10, "dataChange": False}
    return {"cdc": {**body, **more}}


def vector(text: str, **more: Any) -> Action:
    """Return the inside of an action that has an inline vector of that text."""
    body = {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": 40, "cardinality": 1}
    return {"deletionVector": {**body, **more}}


def body_of(*actions: Action) -> bytes:
    """Return the body of a commit."""
    return "".join(json.dumps(action) + "\n" for action in actions).encode()


def make_commit(*actions: Action, version: int = 1, root_url: str = "") -> Commit:
    """Return the scanned commit of some actions."""
    return scan_commit(version, f"{version:020}.json", body_of(*actions), root_url)
