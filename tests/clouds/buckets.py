"""Buckets of every server that tests know."""

from __future__ import annotations

import pytest

from tailerd.storage.base import ObjectStore
from tests.clouds.servers import CloudServer
from tests.s3.servers import S3Server

BucketServer = S3Server | CloudServer
CLOUDS = ("azurite", "fake_gcs")
SERVERS = ("s3_moto", "s3_versitygw", *CLOUDS)
"""Names of their fixtures."""


def new_bucket(request: pytest.FixtureRequest, name: str) -> tuple[ObjectStore, str]:
    """Return the store of a server, by the name of its fixture, and a folder in a new bucket."""
    server: BucketServer = request.getfixturevalue(name)
    return server.store(), f"{server.new_bucket()}/state"
