"""What assembly hands to every sink it builds: sinks do not import encoders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.pipeline_identity import PipelineIdentity
from tailerd.telemetry import Telemetry

if TYPE_CHECKING:
    # Loaded by no worker of Spark: reading configuration files takes half a second to import.
    from tailerd.config import SinkConfig

DAEMON_NAME = "tailerd"
EncodeBatch = Callable[[ChangeBatch], bytes]
"""Turns a batch into bytes that may be appended to those of the batch before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkResources:
    """What a sink needs beside its section.

    Attributes:
        table: Configured name of the table.
        encode: The encoder of the format the sink's section asks for.
        telemetry: Hears of what a delivery does beside delivering.
        daemon: `name` of the configuration.
    """

    table: str
    encode: EncodeBatch
    daemon: str = DAEMON_NAME
    telemetry: Telemetry = field(default_factory=Telemetry)


def pipeline_identity(
    config: SinkConfig, table: str, *, daemon: str, cluster: str = ""
) -> PipelineIdentity:
    """Return which pipeline delivers a table into a sink.

    Args:
        config: The sink's section.
        table: Configured name of the table.
        daemon: `name` of the configuration.
        cluster: Id of the Kafka cluster; empty where it is not known, and for other sinks.
    """
    return PipelineIdentity(
        daemon=daemon,
        table=table,
        sink=config.kind,
        cluster=cluster,
        place=config.identity_place(),
    )
