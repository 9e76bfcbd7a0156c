"""One real Kafka broker (KRaft) on loopback ports of its own.

Listeners, each with an address: `plain` (anonymous, may do everything), `sasl` (SCRAM-SHA-256),
`tls`, `sasl_tls`, and `proxied`: plain, but the broker tells clients to come to `proxy_port`,
where a test puts what cuts or slows their connections.
"""

from __future__ import annotations

import base64
import os
import resource
import shlex
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.kafka.certificates import Certificates, make_certificates
from tests.kafka.jars import class_path, java
from tests.kafka.ports import free_port
from tests.kafka.process import ServerProcess

FORMAT_SECONDS = 60
START_SECONDS = 180
LOOPBACK = "127.0.0.1"
STOP_SECONDS = 30
# `tailerd` may do everything, `limited` nothing that no ACL allows.
USERS = {"tailerd": "tailerd-secret", "limited": "limited-secret"}

_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
_LOG4J = """\
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{HH:mm:ss,SSS} %p %c{1}: %m%n
"""


class BrokerError(Exception):
    """The broker ended, or did not answer in time; the message has the end of its log."""


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of one broker; chosen once, so that it comes back where clients know it."""

    plain: int = field(default_factory=free_port)
    sasl: int = field(default_factory=free_port)
    tls: int = field(default_factory=free_port)
    sasl_tls: int = field(default_factory=free_port)
    proxied: int = field(default_factory=free_port)
    proxy: int = field(default_factory=free_port)
    controller: int = field(default_factory=free_port)


def new_cluster_id() -> str:
    """Return an identity as Kafka wants it: 22 characters of base64, of which "-" is not the first.

    Kafka's own identities leave that out as well: its tools take such a one for an option.
    """
    while True:
        name = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not name.startswith("-"):
            return name


class Broker:
    """A broker that can be formatted, started, stopped, killed, paused, and started again.

    It ends with this process. `properties` are added to server.properties and win over ours.
    """

    def __init__(
        self,
        folder: Path,
        *,
        properties: Mapping[str, str] | None = None,
        node_id: int = 1,
        cluster_id: str | None = None,
        voters: Mapping[int, int] | None = None,
        certificates: Certificates | None = None,
        ports: Ports | None = None,
        heap_mb: int = 512,
        host: str = LOOPBACK,
    ) -> None:
        """Prepare a broker in `folder`, which it has for itself.

        Args:
            folder: Where data, log and configuration go.
            properties: More lines for server.properties.
            node_id: Its number in the cluster.
            cluster_id: The cluster it belongs to; a new one by default.
            voters: Node id to controller port of all brokers of a cluster; alone by default.
            certificates: Of a cluster; made in `folder` by default.
            ports: Its ports; chosen by default.
            heap_mb: Java's heap, in MiB.
            host: Address of this machine at which clients find it.
        """
        self.folder = folder
        self.node_id = node_id
        self.ports = ports or Ports()
        self.log = folder / "broker.log"
        self.certificates = certificates or make_certificates(folder / "certificates")
        self.properties = dict(properties or {})
        self._cluster_id = cluster_id or new_cluster_id()
        self._voters = voters
        self._heap_mb = heap_mb
        self._host = host
        self._process: ServerProcess | None = None

    @property
    def plain(self) -> str:
        """Bootstrap address without security."""
        return f"{self._host}:{self.ports.plain}"

    @property
    def sasl(self) -> str:
        """Bootstrap address of SASL_PLAINTEXT with SCRAM-SHA-256."""
        return f"{self._host}:{self.ports.sasl}"

    @property
    def tls(self) -> str:
        """Bootstrap address of SSL."""
        return f"{self._host}:{self.ports.tls}"

    @property
    def sasl_tls(self) -> str:
        """Bootstrap address of SASL_SSL with SCRAM-SHA-256."""
        return f"{self._host}:{self.ports.sasl_tls}"

    @property
    def proxied(self) -> str:
        """Bootstrap address through the proxy that a test starts at `ports.proxy`."""
        return f"127.0.0.1:{self.ports.proxy}"

    @property
    def is_running(self) -> bool:
        """Whether its process is there."""
        return self._process is not None and self._process.is_running

    @property
    def data(self) -> Path:
        """The folder of its logs and metadata."""
        return self.folder / "data"

    def launch(self) -> None:
        """Start the process, formatted at first, and return without waiting for it to answer."""
        if self.is_running:
            return
        if not (self.data / "meta.properties").exists():
            self._format()
        self._write_properties()
        self._process = ServerProcess(
            self._java("kafka.Kafka", str(self._config)), log=self.log, cwd=self.folder
        )

    def start(self) -> None:
        """Start it, on the data and ports it had, and wait until it answers.

        Raises:
            BrokerError: It ended, or did not answer in time.
        """
        self.launch()
        self.wait_until_answering()

    def wait_until_answering(self, seconds: float = START_SECONDS) -> None:
        """Wait until the broker is registered in its own answer for metadata."""
        client = AdminClient({"bootstrap.servers": self.plain, "log_level": 0})
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if not self.is_running:
                raise self._failure("ended while it started")
            try:
                if self.node_id in client.list_topics(timeout=1).brokers:
                    return
            except KafkaException:
                time.sleep(0.05)
        raise self._failure(f"does not answer after {seconds:g} s")

    def stop(self) -> None:
        """End it in good order (SIGTERM); killed where it takes too long."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a power cut does (SIGKILL)."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Let it hang: connections stay, nothing is answered."""
        if self._process is not None:
            self._process.pause()

    def resume(self) -> None:
        """Go on after `pause`."""
        if self._process is not None:
            self._process.resume()

    def limit_files(self, limit_bytes: int) -> None:
        """Let no file of the running broker grow beyond this, as a full disk would.

        Needs Linux. The limit ends with the process.
        """
        if self._process is not None:
            limits = (limit_bytes, limit_bytes)
            resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, limits)

    def log_tail(self, lines: int = 20) -> str:
        """Return the last lines of its log."""
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def remove_data(self) -> None:
        """Remove everything it stored; it is formatted again at the next start."""
        shutil.rmtree(self.data, ignore_errors=True)

    def _end(self, sent: signal.Signals) -> None:
        if self._process is not None:
            self._process.end(sent, seconds=STOP_SECONDS)
            self._process = None

    def _failure(self, what: str) -> BrokerError:
        return BrokerError(f"Kafka broker {self.node_id} {what}:\n{self.log_tail()}")

    @property
    def _config(self) -> Path:
        return self.folder / "server.properties"

    def _java(self, main: str, *arguments: str) -> list[str]:
        return [
            java(),
            f"-Xmx{self._heap_mb}m",
            "-XX:+UseSerialGC",
            "-Xshare:auto",
            # As Kafka's own scripts read it.
            *shlex.split(os.environ.get("KAFKA_OPTS", "")),
            f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}",
            *["-cp", class_path(), main, *arguments],
        ]

    def _format(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._write_properties()
        (self.folder / "log4j2.properties").write_text(_LOG4J)
        scram = [
            part
            for user, password in USERS.items()
            for part in ("--add-scram", f"SCRAM-SHA-256=[name={user},password={password}]")
        ]
        alone = [] if self._voters else ["--standalone"]
        command = self._java(
            *["kafka.tools.StorageTool", "format", "-t", self._cluster_id],
            *["-c", str(self._config), *alone, *scram],
        )
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=FORMAT_SECONDS, check=False
        )
        if done.returncode != 0:
            raise BrokerError(f"Kafka's storage cannot be formatted:\n{done.stdout}{done.stderr}")

    def _write_properties(self) -> None:
        merged = self._own_properties() | self.properties
        self._config.write_text("".join(f"{key}={value}\n" for key, value in merged.items()))

    def _own_properties(self) -> dict[str, str]:
        return self._network() | self._quorum() | _STORAGE | {"log.dirs": str(self.data)}

    def _quorum(self) -> dict[str, str]:
        if self._voters:
            voters = ",".join(f"{n}@127.0.0.1:{port}" for n, port in self._voters.items())
            return {"controller.quorum.voters": voters}
        return {"controller.quorum.bootstrap.servers": f"127.0.0.1:{self.ports.controller}"}

    def _network(self) -> dict[str, str]:
        ports = self.ports
        own = {
            "PLAIN": ports.plain,
            "SASL": ports.sasl,
            "TLS": ports.tls,
            "SASLTLS": ports.sasl_tls,
            "PROXIED": ports.proxied,
        }
        reported = own | {"PROXIED": ports.proxy}
        listeners = [f"{name}://{self._host}:{port}" for name, port in own.items()]
        security = {
            "PLAIN": "PLAINTEXT",
            "PROXIED": "PLAINTEXT",
            "CONTROLLER": "PLAINTEXT",
            "SASL": "SASL_PLAINTEXT",
            "TLS": "SSL",
            "SASLTLS": "SASL_SSL",
        }
        return {
            "process.roles": "broker,controller",
            "node.id": str(self.node_id),
            "listeners": ",".join([*listeners, f"CONTROLLER://{LOOPBACK}:{ports.controller}"]),
            "advertised.listeners": ",".join(
                f"{n}://{self._host}:{p}" for n, p in reported.items()
            ),
            "listener.security.protocol.map": ",".join(f"{n}:{s}" for n, s in security.items()),
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAIN",
            "sasl.enabled.mechanisms": "SCRAM-SHA-256",
            "listener.name.sasl.scram-sha-256.sasl.jaas.config": _SCRAM,
            "listener.name.sasltls.scram-sha-256.sasl.jaas.config": _SCRAM,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.certificates.server),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.certificates.authority),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS;User:tailerd",
        }


_STORAGE = {
    # Tables of tests are years old, and so are their records.
    "log.retention.ms": "-1",
    "auto.create.topics.enable": "false",
    "default.replication.factor": "1",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    # Transactions that ran out of time are ended within a second, not ten.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    # Deleted topics give their space back at once, not after a minute.
    "log.segment.delete.delay.ms": "500",
    "log.segment.bytes": str(64 << 20),
    # A killed broker that comes back waits until its former self is given up: not for nine seconds.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    # One that nobody asks for anything rests: by default it writes a record twice a second.
    "metadata.max.idle.interval.ms": "5000",
    "controlled.shutdown.retry.backoff.ms": "200",
}
