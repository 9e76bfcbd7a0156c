"""Lets kafka-python's sender keep a request whose coordinator is gone."""

from __future__ import annotations

import time

from kafka import KafkaProducer
from kafka.errors import KafkaError


def keep_requests(producer: KafkaProducer, backoff_seconds: float) -> None:
    """Let the producer try again what it cannot send because a coordinator is gone.

    Its sender takes False from `await_ready` as "not yet", asks for the new coordinator and keeps
    the request. But `await_ready` raises instead, and then the request is dropped: the transaction
    hangs until its records expire, with the sender at full speed.
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
