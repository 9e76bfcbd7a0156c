"""Three brokers that are one cluster: leaders move, replicas fall behind, a majority goes on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.kafka.broker import Broker, Ports, new_cluster_id
from tests.kafka.certificates import make_certificates

_REPLICATED = {
    "default.replication.factor": "3",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "replica.lag.time.max.ms": "3000",
    "controller.quorum.election.timeout.ms": "500",
    "controller.quorum.fetch.timeout.ms": "1000",
}


class Cluster:
    """Brokers 1 to `size`, each also a controller. They end with this process."""

    def __init__(
        self, folder: Path, *, size: int = 3, properties: Mapping[str, str] | None = None
    ) -> None:
        """Prepare the brokers in folders of their own below `folder`."""
        ports = {number: Ports() for number in range(1, size + 1)}
        voters = {number: each.controller for number, each in ports.items()}
        cluster_id = new_cluster_id()
        certificates = make_certificates(folder / "certificates")
        self.brokers = {
            number: Broker(
                folder / f"broker-{number}",
                properties=_REPLICATED | dict(properties or {}),
                node_id=number,
                cluster_id=cluster_id,
                voters=voters,
                certificates=certificates,
                ports=ports[number],
                heap_mb=256,
            )
            for number in ports
        }

    @property
    def plain(self) -> str:
        """Bootstrap addresses of all brokers."""
        return ",".join(broker.plain for broker in self.brokers.values())

    def start(self) -> None:
        """Start what does not run, and wait until every broker answers."""
        for broker in self.brokers.values():
            broker.launch()
        for broker in self.brokers.values():
            broker.wait_until_answering()

    def stop(self) -> None:
        """End all of them at once: the last ones alone could not end in good order."""
        for broker in self.brokers.values():
            broker.kill()
