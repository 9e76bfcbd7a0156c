"""Converts a table's section of the configuration into its policies."""

from __future__ import annotations

import json

from pydantic import BaseModel

from tailerd.config.maintenance import MaintenanceConfig, parse_part_of_day
from tailerd.config.sections import SparkConfig
from tailerd.formats.maintenance import (
    CleanupPolicy,
    DailyPause,
    EngineSettings,
    MaintenancePolicies,
)


def make_policies(
    config: MaintenanceConfig, spark: SparkConfig | None = None
) -> MaintenancePolicies:
    """Return the policies of a section.

    Args:
        spark: The section of that name, for `engine: spark`.
    """
    cleanup = config.cleanup
    return MaintenancePolicies(
        jobs=json.dumps(_list_format_fields(config)),
        cleanup=CleanupPolicy(
            is_enabled=cleanup.enabled,
            older_than_seconds=cleanup.older_than,
            every_seconds=cleanup.every,
            keep_from=cleanup.keep_from,
            wait_for_pins=tuple(cleanup.wait_for_pins),
        ),
        pauses=tuple(DailyPause(*parse_part_of_day(part)) for part in config.not_between),
        engine=spark_engine(spark) if config.runs_on == "spark" else None,
    )


def spark_engine(config: SparkConfig | None = None) -> EngineSettings:
    """Return the settings of the Spark engine."""
    if config is None:
        return EngineSettings()
    return EngineSettings(master=config.master, conf=config.conf)


def _list_format_fields(config: MaintenanceConfig) -> dict[str, object]:
    """Return the fields that are specific to a format and are set: other formats reject them."""
    own = config.model_fields_set - MaintenanceConfig.model_fields.keys()
    return {name: value for name, value in _plain(config).items() if name in own}


def _plain(section: BaseModel) -> dict[str, object]:
    """Return a section's fields as numbers and texts; its own dump spells durations with units."""
    fields = {name: getattr(section, name) for name in type(section).model_fields}
    return {
        name: _plain(value) if isinstance(value, BaseModel) else value
        for name, value in fields.items()
    }
