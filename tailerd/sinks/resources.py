"""Resources that assembly passes to every sink, because sinks do not import encoders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.pipeline_identity import PipelineIdentity
from tailerd.telemetry import Telemetry

if TYPE_CHECKING:
    # Spark workers do not import it: the configuration package takes half a second to import.
    from tailerd.config import SinkConfig
    from tailerd.storage.stores import Stores

DAEMON_NAME = "tailerd"
EncodeBatch = Callable[[ChangeBatch], bytes]
"""Encodes a batch as bytes that may be appended to those of the previous batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkResources:
    """Values that a sink needs in addition to its section.

    Attributes:
        table: Configured name of the table.
        encode: The encoder of the format that the sink's section selects.
        telemetry: Receives the sink's events.
        daemon: `name` of the configuration.
        stores: Access to buckets; None for the settings of the environment.
        state: Location of the daemon's state, a folder or a URL; empty if there is none.
    """

    table: str
    encode: EncodeBatch
    daemon: str = DAEMON_NAME
    state: str = ""
    stores: Stores | None = None
    telemetry: Telemetry = field(default_factory=Telemetry)


def pipeline_identity(
    config: SinkConfig, table: str, *, daemon: str, cluster: str = ""
) -> PipelineIdentity:
    """Return the identity of the pipeline that delivers a table into a sink.

    Args:
        config: The sink's section.
        table: Configured name of the table.
        daemon: `name` of the configuration.
        cluster: Id of the Kafka cluster; empty if unknown, and for other sinks.
    """
    return PipelineIdentity(
        daemon=daemon,
        table=table,
        sink=config.kind,
        cluster=cluster,
        location=config.identity_location(),
    )
