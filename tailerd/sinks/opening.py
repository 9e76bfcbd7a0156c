"""Build sinks from their sections, by the implementation that the section names."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from tailerd.config import SinkConfig
from tailerd.errors import BugError
from tailerd.records.json import JsonEncoder
from tailerd.registry import load_class
from tailerd.sinks.base import Sink
from tailerd.sinks.resources import DAEMON_NAME, SinkResources
from tailerd.telemetry import Telemetry


@runtime_checkable
class _SinkClass(Protocol):
    """The constructor that a sink's class has in addition to `Sink`."""

    def from_config(self, config: SinkConfig, resources: SinkResources) -> Sink:
        """Build the sink of one table."""
        ...


def open_sink(
    table: str,
    config: SinkConfig,
    telemetry: Telemetry | None = None,
    *,
    daemon: str = DAEMON_NAME,
    state: str = "",
) -> Sink | None:
    """Build a table's sink; None for a kind that only Spark can write to.

    Args:
        table: Configured name of the table.
        config: The sink's section.
        telemetry: Receives the sink's events.
        daemon: `name` of the configuration.
        state: `state` of the configuration.

    Raises:
        ConfigError: The distribution that provides it cannot be loaded.
    """
    if not config.implementation:
        return None
    sink_class = load_class(config.implementation)
    if not isinstance(sink_class, _SinkClass):
        raise BugError(f"The sink class {config.implementation} has no `from_config`.")
    resources = SinkResources(
        table=table,
        encode=JsonEncoder().encode_lines,
        daemon=daemon,
        state=state,
        telemetry=telemetry or Telemetry(),
    )
    return sink_class.from_config(config, resources)
