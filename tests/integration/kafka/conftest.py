"""Three brokers for tests of failures; the one shared broker is in tests/conftest.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kafka.cluster import Cluster


@pytest.fixture(scope="module")
def kafka_cluster(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three brokers for one module; a test that ends one of them starts it again."""
    cluster = Cluster(tmp_path_factory.mktemp("kafka-cluster"))
    cluster.start()
    yield cluster
    cluster.stop()
