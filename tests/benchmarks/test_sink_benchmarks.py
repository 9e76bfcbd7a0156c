"""Changes of a table into sinks besides Kafka: ours against what one would write for oneself.

The endpoint is a Python server in this process and shares the machine, so it limits both.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.benchmarks.big_tables import wide_feed
from tests.benchmarks.conftest import Report
from tests.benchmarks.measuring import (
    RESET_PEAK,
    Row,
    delivery_program,
    mebibytes,
    middle,
    run_process,
)
from tests.http.receiver import running_receiver
from tests.s3.servers import ACCESS_KEY, SECRET_KEY, S3Server

pytestmark = [pytest.mark.benchmark, pytest.mark.slow]

COMMITS, ROWS = 20, 5000
BATCH = 100
GOAL_EVENTS = 2000

OURS = delivery_program("tailerd.sinks.http.sink")
PEER = """
    import asyncio, sys, time
    import aiohttp, deltalake, orjson, pyarrow
    table, url, size = sys.argv[1], sys.argv[2], int(sys.argv[3])

    async def deliver():
        rows = 0
        async with aiohttp.ClientSession() as session:
            async def post(events):
                async with session.post(url, data=orjson.dumps(events)) as answer:
                    assert answer.status == 204
            for batch in deltalake.DeltaTable(table).load_cdf(starting_version=0):
                found = [
                    {
                        "specversion": "1.0", "type": "io.tailerd.datachangeevent",
                        "source": "/tailerd/orders", "id": f"{row['_commit_version']}/{rows + n}",
                        "data": {**row, "_commit_timestamp": str(row["_commit_timestamp"])},
                    }
                    for n, row in enumerate(pyarrow.record_batch(batch).to_pylist())
                ]
                rows += len(found)
                for start in range(0, len(found), 4 * size):
                    parts = [found[start + n * size : start + (n + 1) * size] for n in range(4)]
                    await asyncio.gather(*(post(part) for part in parts if part))
        return rows

    start, cpu = time.perf_counter(), time.process_time()
    rows = asyncio.run(deliver())
    result = {
        "rows": rows,
        "seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - cpu,
    }
"""


FILES_COMMITS, FILES_ROWS = 20, 50_000
FILES_GOAL = 0.8
FILES_PEER = f"""
    import sys, time
    import deltalake, pyarrow as pa, pyarrow.parquet as pq
    from pyarrow import fs

    table, endpoint, access, secret, folder = sys.argv[1:]
    # Reading is not timed: both write the same rows, which are in memory.
    batches = [pa.record_batch(b) for b in deltalake.DeltaTable(table).load_cdf(starting_version=0)]
    store = fs.S3FileSystem(
        endpoint_override=endpoint, access_key=access, secret_key=secret, region="us-east-1"
    )
    store.get_file_info(folder)
    {RESET_PEAK}
    start, cpu = time.perf_counter(), time.process_time()
    with store.open_output_stream(f"{{folder}}/changes.parquet") as file:
        with pq.ParquetWriter(file, batches[0].schema, compression="zstd") as writer:
            for batch in batches:
                writer.write_batch(batch)
    result = {{
        "rows": sum(batch.num_rows for batch in batches),
        "seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - cpu,
    }}
"""
FILES_OURS = """
    import asyncio, sys, time
    from tailerd.arrow_start import start_arrow
    start_arrow()
    import deltalake, pyarrow as pa
    from tailerd.changefeed.change_batch import CHANGE_COLUMNS, ChangeBatch
    from tailerd.changefeed.change_task import ChangeMode, ChangeSourceKind
    from tailerd.changefeed.offset import Offset, Version
    from tailerd.changefeed.saved_offset import SavedOffset
    from tailerd.sinks.base import Delivery
    from tailerd.sinks.bucket.sink import BucketSink
    from tailerd.sinks.file.config import FileSinkConfig
    from tailerd.sinks.resources import SinkResources
    from tailerd.storage.stores import Stores

    table, endpoint, access, secret, folder = sys.argv[1:]
    batches = []
    for found in deltalake.DeltaTable(table).load_cdf(starting_version=0):
        rows = pa.record_batch(found)
        batches.append(ChangeBatch(
            rows=rows.drop_columns(list(CHANGE_COLUMNS)),
            change_type=rows.column("_change_type").cast(pa.string()),
            version=Version(rows.column("_commit_version")[0].as_py()),
            timestamp_us=rows.column("_commit_timestamp")[0].value,
            change_source=ChangeSourceKind.FILES,
        ))

    async def deliver():
        stores = Stores.from_fields({
            "endpoint": endpoint, "region": "us-east-1",
            "access_key_id": access, "secret_access_key": secret,
        })
        config = FileSinkConfig(
            kind="file", path=f"s3://{folder}", format="parquet", max_bytes_per_file=1 << 40
        )
        sink = BucketSink(config, SinkResources(table="t", encode=bytes, stores=stores))
        start, end = (Offset(table_id="t", version=Version(v)) for v in (0, 100))
        await sink.resume(start)

        async def read():
            for batch in batches:
                yield batch

        began, cpu = time.perf_counter(), time.process_time()
        rows = await sink.write(Delivery(
            table="t", start=start, end=end, batches=read(),
            saved=SavedOffset(offset=end, changes=ChangeMode.AUTO),
        ))
        return {
            "rows": rows,
            "seconds": time.perf_counter() - began,
            "cpu_seconds": time.process_time() - cpu,
        }

    result = asyncio.run(deliver())
"""


def write_config(folder: Path, table: Path, sink: dict[str, Any]) -> Path:
    path = folder / "tailerd.yaml"
    config = {
        "engine": "arrow",
        "state": str(folder / "state"),
        "http": {"listen": None},
        "tables": {"orders": {"path": str(table), "from": "0", "sink": sink}},
    }
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.mark.parametrize("options", [{}, {"compression": "gzip", "hmac_key": "a-key"}], ids=str)
def test_changes_as_cloudevents_to_an_endpoint(
    options: dict[str, Any], tmp_path: Path, report: Report
) -> None:
    table = wide_feed(COMMITS, ROWS)
    ours, peers = [], []
    with running_receiver() as receiver:
        for turn in range(3):
            folder = tmp_path / str(turn)
            folder.mkdir()
            sink = {"kind": "http", "url": receiver.url, "batch": {"max_events": BATCH}, **options}
            ours.append(run_process(OURS, write_config(folder, table, sink)))
            assert len(receiver.events) == ours[-1].result["rows"], "events are missing or doubled"
            receiver.requests.clear()
            receiver.accepted.clear()
            peers.append(run_process(PEER, table, receiver.url, str(BATCH)))
            receiver.requests.clear()
            receiver.accepted.clear()
    one, other = middle(ours), middle(peers)
    assert one.result["rows"] == other.result["rows"] > 0
    rates = [run.result["rows"] / run.result["seconds"] for run in (one, other)]
    above = one.result["above_idle_bytes"]
    name = f"{one.result['rows'] / 1000:.0f} k events to HTTP in batches of {BATCH}"
    report(
        [
            Row(
                f"{name}{', gzip and signed' if options else ''}",
                f"{rates[0]:,.0f} events/s",
                f"{rates[1]:,.0f} events/s",
                rates[0] / rates[1],
                f">= {GOAL_EVENTS:,} events/s",
                rates[0] >= GOAL_EVENTS,
            ),
            Row(
                "  client CPU",
                f"{one.result['cpu_seconds'] / one.result['rows'] * 1e6:.1f} us/event",
                f"{other.result['cpu_seconds'] / other.result['rows'] * 1e6:.1f} us/event",
                one.result["cpu_seconds"] / other.result["cpu_seconds"],
                "",
                True,
            ),
            Row(
                "  memory above idle",
                mebibytes(above),
                "",
                None,
                "<= 150 MiB",
                above <= 150 * 1024**2,
            ),
        ]
    )


def test_changes_as_parquet_files_in_a_bucket(s3_moto: S3Server, report: Report) -> None:
    table = wide_feed(FILES_COMMITS, FILES_ROWS)
    keys = (s3_moto.endpoint, ACCESS_KEY, SECRET_KEY)
    ours, peers = [], []
    for _ in range(3):
        bucket = s3_moto.new_bucket()
        ours.append(run_process(FILES_OURS, table, *keys, f"{bucket}/ours"))
        peers.append(run_process(FILES_PEER, table, *keys, f"{bucket}/peer"))
    one, other = middle(ours), middle(peers)
    assert one.result["rows"] == other.result["rows"] > 0
    rates = [run.result["rows"] / run.result["seconds"] for run in (one, other)]
    report(
        [
            Row(
                f"{one.result['rows'] / 1000:.0f} k rows to one Parquet file in a bucket",
                f"{rates[0]:,.0f} rows/s",
                f"{rates[1]:,.0f} rows/s",
                rates[0] / rates[1],
                f">= {FILES_GOAL}x of pyarrow",
                rates[0] >= FILES_GOAL * rates[1],
            ),
        ]
    )
