"""Queues of the three clouds, each with a way to send what its bucket would send."""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
import shutil
import signal
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

from tailerd.config.notifications import NotificationsConfig
from tailerd.storage.object_store.accounts import AzureAccount, GoogleAccount
from tailerd.watchers.queue import Queue
from tests.clouds.servers import (
    AZURE_ACCOUNT,
    AZURE_KEY,
    CloudServerUnavailableError,
    await_port,
    cache_folder,
)
from tests.kafka.ports import free_port
from tests.kafka.process import ServerProcess
from tests.s3.notified import NotifiedBucket
from tests.s3.servers import S3Server

PROJECT = "test"
TOPIC = "commits"


def event_grid(bucket: str, key: str, kind: str = "Microsoft.Storage.BlobCreated") -> str:
    """Return the message that Event Grid puts into a queue."""
    event = {
        "topic": f"/subscriptions/1/resourceGroups/g/providers/Microsoft.Storage/{AZURE_ACCOUNT}",
        "subject": f"/blobServices/default/containers/{bucket}/blobs/{key}",
        "eventType": kind,
        "id": secrets.token_hex(8),
        "data": {"api": "PutBlob", "url": f"https://x.blob.core.windows.net/{bucket}/{key}"},
        "dataVersion": "",
    }
    return base64.b64encode(json.dumps(event).encode()).decode()


class TestQueue:
    """One queue.

    Attributes:
        config: The section `notifications` for it.
        missing: The same for one that does not exist.
        unreachable: The same for a server that does not run.
    """

    __test__ = False
    config: dict[str, Any]
    missing: dict[str, Any]
    unreachable: dict[str, Any]

    def open(self, fields: dict[str, Any] | None = None) -> Queue:
        """Return the queue of a section `notifications`."""
        raise NotImplementedError

    def send_created(self, bucket: str, key: str) -> None:
        """Send what its bucket sends of a new object."""
        raise NotImplementedError

    def send(self, text: str) -> None:
        """Send a message that no bucket sent."""
        raise NotImplementedError

    def left(self) -> int:
        """Return how many messages there are, those included that somebody is at work on."""
        raise NotImplementedError


class Sqs(TestQueue):
    """A queue on moto."""

    def __init__(self, server: S3Server) -> None:
        """Make it."""
        self.notified = NotifiedBucket(server, visible_seconds=1)
        self.config = {"queue": self.notified.queue, "endpoint": server.endpoint, "wait": "1s"}
        self.missing = {**self.config, "queue": f"{self.notified.queue}-missing"}
        self.unreachable = {**self.config, "endpoint": "http://127.0.0.1:1"}

    def open(self, fields: dict[str, Any] | None = None) -> Queue:
        """Return the queue."""
        from tailerd.watchers.sqs import SqsQueue

        config = NotificationsConfig(**(fields or self.config))
        return SqsQueue(config, self.notified.server.account(""))

    def send_created(self, bucket: str, key: str) -> None:
        """Send what S3 sends."""
        about = {"bucket": {"name": bucket}, "object": {"key": quote_plus(key)}}
        self.send(json.dumps({"Records": [{"eventName": "ObjectCreated:Put", "s3": about}]}))

    def send(self, text: str) -> None:
        """Send a message."""
        self.notified.send(text)

    def left(self) -> int:
        """Return how many messages there are."""
        return self.notified.left()


class AzuriteQueues:
    """The queues of Azurite, in memory, on a loopback port."""

    def __init__(self, folder: Path) -> None:
        """Prepare."""
        self.port = free_port()
        self._folder = folder
        self._process: ServerProcess | None = None

    def start(self) -> None:
        """Start, and wait until it answers.

        Raises:
            CloudServerUnavailableError: Node or Azurite is not here.
        """
        program = cache_folder() / "azurite" / "node_modules" / ".bin" / "azurite-queue"
        if shutil.which("node") is None or not program.exists():
            raise CloudServerUnavailableError(
                "Azurite is not here: python -m tests.clouds.servers, which needs npm."
            )
        options = ("--silent", "--disableTelemetry", "--inMemoryPersistence")
        address = ("--queueHost", "127.0.0.1", "--queuePort", str(self.port))
        words = [str(program), *options, "--skipApiVersionCheck", *address]
        log = self._folder / "queues.log"
        self._process = ServerProcess(words, log=log, cwd=self._folder)
        await_port(self.port, self._process, log)

    def stop(self) -> None:
        """Stop it."""
        if self._process is not None:
            self._process.end(signal.SIGTERM, seconds=5)


class StorageQueue(TestQueue):
    """A storage queue on Azurite."""

    def __init__(self, server: AzuriteQueues) -> None:
        """Make it."""
        name = f"q-{secrets.token_hex(6)}"
        address = f"http://127.0.0.1:{server.port}/{AZURE_ACCOUNT}"
        self.config = {"queue": f"{address}/{name}", "kind": "azure"}
        self.missing = {**self.config, "queue": f"{address}/{name}-missing"}
        closed = f"http://127.0.0.1:1/{AZURE_ACCOUNT}/{name}"
        self.unreachable = {**self.config, "queue": closed}
        self.client.create_queue()

    @property
    def client(self) -> Any:
        """The vendor's client of it."""
        from azure.storage.queue import QueueClient

        key = {"account_name": AZURE_ACCOUNT, "account_key": AZURE_KEY}
        return QueueClient.from_queue_url(self.config["queue"], credential=key)

    def open(self, fields: dict[str, Any] | None = None, key: str = AZURE_KEY) -> Queue:
        """Return the queue."""
        from tailerd.watchers.azure_queue import AzureQueue

        account = AzureAccount(account=AZURE_ACCOUNT, account_key=key)
        return AzureQueue(NotificationsConfig(**(fields or self.config)), account)

    def send_created(self, bucket: str, key: str) -> None:
        """Send what Event Grid sends."""
        self.send(event_grid(bucket, key))

    def send(self, text: str) -> None:
        """Send a message."""
        self.client.send_message(text)

    def left(self) -> int:
        """Return how many messages there are."""
        return int(self.client.get_queue_properties().approximate_message_count)


class PubSub:
    """Pub/Sub on two loopback ports."""

    def __init__(self, folder: Path) -> None:
        """Prepare."""
        self.port, self.port_left = free_port(), free_port()
        self._folder = folder
        self._process: ServerProcess | None = None

    @property
    def host(self) -> str:
        """As the variable PUBSUB_EMULATOR_HOST has it."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start, and wait until it answers.

        Raises:
            CloudServerUnavailableError: Its program is not here.
        """
        program = cache_folder() / "bin" / "pubsub"
        if not program.exists():
            raise CloudServerUnavailableError(
                "Pub/Sub is not here: python -m tests.clouds.servers, which needs Go."
            )
        words = [str(program), str(self.port), str(self.port_left)]
        log = self._folder / "pubsub.log"
        self._process = ServerProcess(words, log=log, cwd=self._folder)
        for port in (self.port, self.port_left):
            await_port(port, self._process, log)

    def stop(self) -> None:
        """Stop it."""
        if self._process is not None:
            self._process.end(signal.SIGTERM, seconds=5)


class Subscription(TestQueue):
    """A topic with a subscription."""

    def __init__(self, server: PubSub) -> None:
        """Make both."""
        self.server = server
        self.name = f"s-{secrets.token_hex(6)}"
        self.topic = f"projects/{PROJECT}/topics/{self.name}"
        queue = f"projects/{PROJECT}/subscriptions/{self.name}"
        self.config = {"queue": queue, "endpoint": f"http://{server.host}", "wait": "1s"}
        self.missing = {**self.config, "queue": f"{queue}-missing"}
        self.unreachable = {**self.config, "endpoint": "http://127.0.0.1:1"}
        self._before = 0
        asyncio.run(self._make())
        self._before = self.left()

    async def _make(self) -> None:
        from google.pubsub_v1 import PublisherAsyncClient, SubscriberAsyncClient
        from google.pubsub_v1.services.publisher.transports import PublisherGrpcAsyncIOTransport
        from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcAsyncIOTransport
        from grpc.aio import insecure_channel

        channel = insecure_channel(self.server.host)
        publisher = PublisherAsyncClient(transport=PublisherGrpcAsyncIOTransport(channel=channel))
        await publisher.create_topic(name=self.topic)
        subscriber = SubscriberAsyncClient(
            transport=SubscriberGrpcAsyncIOTransport(channel=channel)
        )
        await subscriber.create_subscription(
            name=self.config["queue"], topic=self.topic, ack_deadline_seconds=10
        )
        await channel.close()

    def open(self, fields: dict[str, Any] | None = None) -> Queue:
        """Return the queue."""
        from tailerd.watchers.pubsub import PubSubQueue

        return PubSubQueue(NotificationsConfig(**(fields or self.config)), GoogleAccount())

    def send_created(self, bucket: str, key: str) -> None:
        """Send what Google Cloud Storage sends."""
        event = {"eventType": "OBJECT_FINALIZE", "payloadFormat": "JSON_API_V1"}
        asyncio.run(self._publish("{}", {**event, "bucketId": bucket, "objectId": key}))

    def send(self, text: str) -> None:
        """Send a message."""
        asyncio.run(self._publish(text, {}))

    async def _publish(self, text: str, attributes: dict[str, str]) -> None:
        from google.pubsub_v1 import PublisherAsyncClient
        from google.pubsub_v1.services.publisher.transports import PublisherGrpcAsyncIOTransport
        from grpc.aio import insecure_channel

        channel = insecure_channel(self.server.host)
        publisher = PublisherAsyncClient(transport=PublisherGrpcAsyncIOTransport(channel=channel))
        message: Any = {"data": text.encode(), "attributes": attributes}
        await publisher.publish(topic=self.topic, messages=[message])
        await channel.close()

    def left(self) -> int:
        """Return how many messages nobody acknowledged."""
        address = f"http://127.0.0.1:{self.server.port_left}/left"
        with urllib.request.urlopen(address, timeout=10) as answer:
            return int(answer.read()) - self._before
