"""Every store there is, for the contracts of what is kept in one. A new store adds itself here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext

import pytest

from tailerd.storage.base import ObjectStore
from tailerd.storage.local import LocalStore
from tailerd.storage.memory import MemoryStore
from tailerd.storage.metered import MeteredStore
from tailerd.storage.s3.store import S3Store
from tailerd.storage.stores import Stores
from tests.clouds.buckets import CLOUDS
from tests.clouds.servers import CloudServer
from tests.doubles.faulty_store import FaultyStore
from tests.plugins import example_is_installed
from tests.s3.servers import S3Server


class SlowDiskStore(LocalStore):
    """The local store on a file system that is not known to answer at once."""

    async def _is_prompt(self, path: str) -> bool:
        return False


STORES: dict[str, Callable[[], ObjectStore]] = {
    "local": LocalStore,
    "local-in-threads": SlowDiskStore,
    "memory": MemoryStore,
    "metered": lambda: MeteredStore(LocalStore()),
    "faulty-without-faults": lambda: FaultyStore(LocalStore()),
    "skeleton": lambda: Stores().locate("box://any")[0],
}

S3_SERVERS = ("s3_moto", "s3_versitygw")


@pytest.fixture(params=[*STORES, *S3_SERVERS, *CLOUDS])
def server(request: pytest.FixtureRequest) -> S3Server | CloudServer | None:
    if request.param not in (*S3_SERVERS, *CLOUDS):
        return None
    found: S3Server | CloudServer = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def store(
    request: pytest.FixtureRequest, server: S3Server | CloudServer | None
) -> Iterator[ObjectStore]:
    if isinstance(server, CloudServer):
        yield server.store()
        return
    if server is not None:
        yield S3Store(server.settings())
        return
    name = request.node.callspec.params["server"]
    with example_is_installed() if name == "skeleton" else nullcontext():
        yield STORES[name]()
