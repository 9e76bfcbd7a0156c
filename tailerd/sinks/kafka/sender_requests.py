"""Make kafka-python's sender keep a request whose coordinator is unavailable."""

from __future__ import annotations

import time

from kafka import KafkaProducer
from kafka.errors import KafkaError


def keep_requests(producer: KafkaProducer, backoff_seconds: float) -> None:
    """Make the producer retry requests that fail because a coordinator is unavailable.

    If `await_ready` returns False, the sender looks up the new coordinator and keeps the request.
    But `await_ready` raises instead, and then the request is dropped: the transaction hangs until
    its records expire, while the sender busy-loops.
    """
    client = producer._sender._client
    await_ready = client.await_ready

    def is_ready(node_id: object, timeout_ms: float = 30_000) -> bool:
        try:
            return bool(await_ready(node_id, timeout_ms=timeout_ms))
        except KafkaError:
            time.sleep(backoff_seconds)
            return False

    client.await_ready = is_ready
