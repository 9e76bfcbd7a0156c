"""Tables in a bucket: what following one asks for, and a daemon that delivers one."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tailerd.changefeed.offset import Version
from tailerd.formats.detect import find_format
from tailerd.storage.table_location import locate_table
from tests.formats.delivering import changes as counted
from tests.formats.delivering import delivered
from tests.formats.lance.following import EVERYTHING, batches, changes, opened, rest
from tests.formats.lance.test_gaps import ids, rows
from tests.integration.daemon.running import daemon, run_to_end
from tests.integration.s3.configured import write_tables_config
from tests.integration.s3.conftest import bucket, proxy  # noqa: F401 - fixtures
from tests.s3.proxy import FaultProxy
from tests.s3.servers import ACCESS_KEY, SECRET_KEY, S3Server
from tests.tables.lance_writer import LanceWriter
from tests.waiting import eventually


def written(server: S3Server, location: str) -> LanceWriter:
    """A table whose writer goes past the proxy."""
    options = {
        "aws_endpoint": server.endpoint,
        "allow_http": "true",
        "aws_region": "us-east-1",
        "aws_access_key_id": ACCESS_KEY,
        "aws_secret_access_key": SECRET_KEY,
    }
    writer = LanceWriter(location, options=options, stable_ids=True)
    writer.append(rows(*range(5)))
    return writer


async def test_changes_come_from_a_bucket_and_a_look_at_rest_is_one_request(
    proxy: FaultProxy,  # noqa: F811
    s3_moto: S3Server,
    bucket: str,  # noqa: F811
) -> None:
    location = f"s3://{bucket}/lake/t"
    writer = written(s3_moto, location)
    assert (await find_format(locate_table(location))).name == "lance"
    source = await opened(location)
    found, at = await rest(source, await source.initial_offset("snapshot"))
    assert len(changes(found)) == 5
    proxy.forget()
    assert await source.latest_offset(at, EVERYTHING) == at
    assert sum(proxy.counts().values()) == 1
    writer.dataset.update({"name": "'x'"}, where="id = 2")
    writer.delete("id = 3")
    found, at = await rest(source, at)
    assert ids(found) == [("update_preimage", 2), ("update_postimage", 2), ("delete", 3)]


async def test_many_versions_are_planned_with_a_request_each(
    proxy: FaultProxy,  # noqa: F811
    s3_moto: S3Server,
    bucket: str,  # noqa: F811
) -> None:
    location = f"s3://{bucket}/lake/t"
    writer = written(s3_moto, location)
    for number in range(6):
        writer.append(rows(10 + number))
    source = await opened(location)
    begin = await source.offset_at(Version(2))
    proxy.forget()
    groups = [each async for each in source.plan(begin, await source.initial_offset("latest"))]
    assert len(groups) == 6
    assert sum(proxy.counts().values()) <= 9, proxy.counts()
    end = begin.after_version(source)
    assert ids(await batches(source, begin, end)) == [("insert", 10)]


@pytest.mark.full
def test_a_daemon_delivers_a_table_from_a_bucket(
    s3_moto: S3Server,
    bucket: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    location = f"s3://{bucket}/lake/t"
    writer = written(s3_moto, location)
    config = write_tables_config(
        tmp_path,
        s3_moto,
        {"orders": location},
        options={"from": "snapshot", "format": "lance"},
        state=f"s3://{s3_moto.new_bucket()}/state",
    )

    def found() -> Counter[tuple[object, ...]]:
        return counted(delivered(tmp_path / "out/orders"))

    done = run_to_end("run", "--config", config, "--once")
    assert done.returncode == 0, done.stderr
    writer.delete("id = 1")
    with daemon(config):
        eventually(lambda: found().total() == 6)
        writer.append(rows(9))
        eventually(lambda: found().total() == 7)
    expected = Counter(("insert", number, 1) for number in range(5))
    assert found() == expected + Counter([("delete", 1, 2), ("insert", 9, 3)])
