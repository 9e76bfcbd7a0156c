"""One delivery in a transaction that another producer writes into, by a daemon that may die in it.

`python -m ... BOOTSTRAP TOPIC OFFSETS_TOPIC VERSION DIE_AT`; says `repeated` or `written`.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from unittest.mock import patch

from tailerd.sinks.base import RowWriter
from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.sinks.kafka.sink import KafkaSink
from tailerd.sinks.kafka.transactions import Transactions
from tests.contracts.test_sink import batch, offset
from tests.remote_deliveries import remote_delivery, with_run, written_by

ROWS = 100


def make_ids(version: int) -> range:
    """Return the rows of a delivery."""
    return range(version * ROWS, (version + 1) * ROWS)


def config(bootstrap: str, topic: str, offsets: str, **fields: object) -> KafkaSinkConfig:
    """Return the section of a sink whose offset is in Kafka."""
    section = {
        "kind": "kafka",
        "bootstrap_servers": [bootstrap],
        "topic": topic,
        "delivery": "exactly-once",
        "offsets_topic": offsets,
        "transactional_id": f"steps-{topic}",
        **fields,
    }
    return KafkaSinkConfig.model_validate(section)


def _die_in_commit(transactions: Transactions) -> None:
    """Die when the brokers have been asked to commit, perhaps before they heard of it."""
    manager = transactions._producer._transaction_manager
    manager.begin_commit()
    transactions._producer._sender.wakeup()
    time.sleep(float(os.environ.get("DIE_AFTER", "0")))
    os._exit(9)


async def main(bootstrap: str, topic: str, offsets: str, version: int, die_at: str) -> None:
    """Deliver one version, unless the saved offset says that it is delivered."""
    sink = KafkaSink(config(bootstrap, topic, offsets), table="orders")
    await sink.fence()
    assert sink.offsets is not None
    saved = await sink.offsets.load("orders")
    if saved is not None and saved.offset.version > version:
        print("repeated")
        await sink.aclose()
        return
    await sink.resume(offset(version))

    async def run(writer: RowWriter) -> object:
        found = await written_by(batch(version, make_ids(version)))(writer)
        if die_at == "produced":
            os._exit(9)
        return found

    if die_at == "recorded":
        patch.object(Transactions, "commit", lambda _: os._exit(9)).start()
    if die_at == "committing":
        patch.object(Transactions, "commit", _die_in_commit).start()
    await sink.write_remotely(with_run(remote_delivery(version), run))
    if die_at == "committed":
        os._exit(9)
    await sink.aclose()
    print("written")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5]))
