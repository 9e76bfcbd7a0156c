"""Buckets of every server that tests know."""

from __future__ import annotations

import pytest

from tailerd.storage.base import ObjectStore
from tailerd.storage.s3.store import S3Store
from tests.clouds.servers import CloudServer
from tests.s3.servers import S3Server

CLOUDS = ("azurite", "fake_gcs")


def new_bucket(request: pytest.FixtureRequest, name: str) -> tuple[ObjectStore, str]:
    """Return the store of a server, by the name of its fixture, and a folder in a new bucket."""
    server: S3Server | CloudServer = request.getfixturevalue(name)
    store = server.store() if isinstance(server, CloudServer) else S3Store(server.settings())
    return store, f"{server.new_bucket()}/state"
