"""Which pipeline an offset belongs to: names that do not depend on the configuration's path."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from tailerd.pipeline_names import file_name

_NOT_PLAIN = re.compile(r"[^A-Za-z0-9._-]")
_MAX_CHARS = 180
_DIGITS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineIdentity:
    """A pipeline is a daemon's name, its own name, and the location that the sink writes to.

    Attributes:
        daemon: `name` of the configuration.
        table: Name of the pipeline: of the table, or `TABLE/SINK`.
        sink: Kind of the sink.
        cluster: Id of the Kafka cluster; empty for other sinks.
        location: The configured topic, or the real path of the folder; empty for a sink without a
            location.
    """

    daemon: str = ""
    table: str = ""
    sink: str = ""
    cluster: str = ""
    location: str = ""

    @property
    def key(self) -> str:
        """Return the key of the offset record in Kafka; different for different identities."""
        # Only the topic, which comes last, may contain a slash.
        return "/".join((self.daemon, file_name(self.table), self.cluster, self.location))

    @property
    def transactional_id(self) -> str:
        """Return the default transactional id: readable, of bounded length, as unique as `key`."""
        readable = _NOT_PLAIN.sub("-", f"tailerd-{self.daemon}-{self.table}-{self.location}")
        digest = hashlib.sha256(self.key.encode()).hexdigest()[:_DIGITS]
        return f"{readable[:_MAX_CHARS]}-{digest}"

    def __str__(self) -> str:
        """Return the identity as text for messages."""
        cluster = f" of the cluster {self.cluster}" if self.cluster else ""
        location = f" {self.location}" if self.location else ""
        return f"{self.table} of the daemon {self.daemon!r} into {self.sink}{location}{cluster}"


UNKNOWN_PIPELINE = PipelineIdentity()
"""Placeholder for a pipeline without a configuration."""
