"""One micro-batch in a shared transaction, by a process that may die in it.

`python -m ... BOOTSTRAP TOPIC OFFSETS_TOPIC BATCH DIE_AT`; says `repeated` or `written`.
"""

from __future__ import annotations

import os
import sys
import time
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from tailerd.records.base import Records
from tailerd.sinks.kafka.acknowledgements import Acknowledgements
from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.sinks.kafka.connection import Connection
from tailerd.sinks.kafka.produce_request import ProduceRequest
from tailerd.sinks.kafka.shared_transaction import SharedTransaction, join, written
from tailerd.sinks.kafka.transactions import Transactions
from tailerd.spark.delivered_batch import DeliveredBatch
from tailerd.spark.kafka.batch_transaction import BatchTransaction
from tailerd.spark.kafka.task_producer import TaskProducer, take_producer

WRITERS = 2
RECORDS = 50


def _raise(error: Exception) -> Exception:
    return error


def write(opened: TaskProducer, topic: str, batch: int, writer: int) -> None:
    """Write records of one partition and wait for them, as a task does."""
    keys = [b"%d-%d-%d" % (batch, writer, number) for number in range(RECORDS)]
    acknowledgements = Acknowledgements(max_bytes=1 << 20, timeout_seconds=20, explain=_raise)
    opened.client.partitions_for(topic)
    opened.sender.send(
        ProduceRequest(
            topic=topic,
            records=Records(keys=pa.array(keys), values=pa.array(keys)),
            partitions=np.full(RECORDS, writer),
            timestamps_ms=time.time_ns() // 1_000_000,
            max_bytes=1 << 20,
        ),
        acknowledgements,
    )
    acknowledgements.wait()


def joined(config: KafkaSinkConfig, shared: SharedTransaction) -> TaskProducer:
    """Return a task's producer in the transaction."""
    opened = take_producer(config, shared.transactional_id)
    join(opened.client, shared)
    return opened


def alone(config: KafkaSinkConfig) -> TaskProducer:
    """Return a producer that is in no transaction."""
    return take_producer(config, None)


def report(
    config: KafkaSinkConfig, shared: SharedTransaction, batch: int, writer: int
) -> dict[tuple[str, int], int]:
    """Do what a task does; return what it tells of the transaction."""
    opened = joined(config, shared)
    write(opened, config.topic, batch, writer)
    return written(opened.client)


def _die_in_commit(transactions: Transactions) -> None:
    """Die when the brokers have been asked to commit, perhaps before they heard of it."""
    manager = transactions._producer._transaction_manager
    manager.begin_commit()
    transactions._producer._sender.wakeup()
    time.sleep(float(os.environ.get("DIE_AFTER", "0")))
    os._exit(9)


def main(bootstrap: str, topic: str, offsets: str, batch: int, die_at: str) -> None:
    """Do what a driver and its tasks do for one micro-batch."""
    config = KafkaSinkConfig(
        kind="kafka", bootstrap_servers=[bootstrap], topic=topic, delivery="exactly-once"
    )
    session = BatchTransaction(
        Connection(config), f"steps-{topic}", key="spark/steps", topic=offsets, max_bytes=1 << 20
    )
    last = session.claim(None)
    if last is not None and batch <= last.batch_id:
        print("repeated")
        return
    shared = session.begin()
    reports = [report(config, shared, batch, writer) for writer in range(WRITERS)]
    if die_at == "produced":
        os._exit(9)
    if die_at == "recorded":
        patch.object(Transactions, "commit", lambda _: os._exit(9)).start()
    if die_at == "committing":
        patch.object(Transactions, "commit", _die_in_commit).start()
    session.commit(DeliveredBatch(checkpoint="one", batch_id=batch, end=""), reports, [])
    if die_at == "committed":
        os._exit(9)
    session.close(is_clean=True)
    print("written")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5])
