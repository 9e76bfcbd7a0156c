"""What is mended of kafka-python for coordinators that are gone, and that it needs mending."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from kafka.errors import KafkaConnectionError
from kafka.net.compat import KafkaNetClient
from kafka.producer.sender import Sender

from tailerd.sinks.kafka.client_internals import keep_requests
from tests.kafka.ports import free_port

NODE = "bootstrap-0"


@pytest.fixture
def client() -> Iterator[KafkaNetClient]:
    """A client of a broker that is not there."""
    client = KafkaNetClient(bootstrap_servers=f"127.0.0.1:{free_port()}")
    yield client
    client.close()


def test_the_client_raises_where_its_sender_expects_false(client: KafkaNetClient) -> None:
    with pytest.raises(KafkaConnectionError):
        client.await_ready(NODE, timeout_ms=1000)
    source = inspect.getsource(Sender._maybe_send_pending_request)
    assert source.count("elif not self._client.await_ready(") == 2
    # The request is kept only where no node was found, which an exception leaves untold.
    assert "if target_node is None:\n            self._transaction_manager.retry(" in source


def test_mended_it_says_false_so_that_the_request_is_kept(client: KafkaNetClient) -> None:
    keep_requests(SimpleNamespace(_sender=SimpleNamespace(_client=client)), 0.001)
    assert client.await_ready(NODE, timeout_ms=1000) is False
