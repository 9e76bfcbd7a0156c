"""Build sinks from their sections, by the implementation that the section names."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from tailerd.config import SinkConfig
from tailerd.errors import BugError
from tailerd.records.json import JsonEncoder
from tailerd.registry import load_class
from tailerd.sinks.base import Sink
from tailerd.sinks.resources import DAEMON_NAME, SinkResources
from tailerd.storage.stores import Stores
from tailerd.telemetry import Telemetry


@runtime_checkable
class _SinkClass(Protocol):
    """The constructor that a sink's class has in addition to `Sink`."""

    def from_config(self, config: SinkConfig, resources: SinkResources) -> Sink:
        """Build the sink of one table."""
        ...


@runtime_checkable
class _SelectsImplementation(Protocol):
    """A section whose fields decide which sink it is for. Optional."""

    def select_implementation(self) -> str:
        """Return `module:Class`."""
        ...


def open_sink(
    table: str,
    config: SinkConfig,
    telemetry: Telemetry | None = None,
    *,
    daemon: str = DAEMON_NAME,
    state: str = "",
    stores: Stores | None = None,
) -> Sink | None:
    """Build a table's sink; None for a kind that only Spark can write to.

    Args:
        table: Configured name of the table.
        config: The sink's section.
        telemetry: Receives the sink's events.
        daemon: `name` of the configuration.
        state: `state` of the configuration.
        stores: Access to buckets; by default with the settings of the environment.

    Raises:
        ConfigError: The distribution that provides it cannot be loaded.
    """
    implementation = config.implementation
    if isinstance(config, _SelectsImplementation):
        implementation = config.select_implementation()
    if not implementation:
        return None
    sink_class = load_class(implementation)
    if not isinstance(sink_class, _SinkClass):
        raise BugError(f"The sink class {implementation} has no `from_config`.")
    resources = SinkResources(
        table=table,
        encode=JsonEncoder().encode_lines,
        daemon=daemon,
        state=state,
        stores=stores,
        telemetry=telemetry or Telemetry(),
    )
    return sink_class.from_config(config, resources)
