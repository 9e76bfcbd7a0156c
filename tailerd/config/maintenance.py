"""The section `maintenance` of a table: the common fields, and how a format adds its own."""

from __future__ import annotations

import re
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from tailerd.config.explain import describe_error, prefix_with
from tailerd.config.values import Seconds
from tailerd.registry import AUTO, format_class, format_names, unknown_field

_PART_OF_DAY = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")
WEEK_SECONDS = 7 * 86_400.0
DECADE_SECONDS = 3653 * 86_400.0


def parse_part_of_day(part_of_day: str) -> tuple[int, int]:
    """Return start and end of `22:00-06:00` in minutes after midnight.

    Raises:
        ValueError: The text has another form, or start and end are equal.
    """
    match = _PART_OF_DAY.fullmatch(part_of_day)
    if match is None:
        raise ValueError("write the times of a day as HH:MM-HH:MM in UTC, such as 08:00-18:00")
    start, end = (int(match[n]) * 60 + int(match[n + 1]) for n in (1, 3))
    if start == end:
        raise ValueError("it begins when it ends; to do nothing at all, leave `maintenance` out")
    return start, end


def _check_part_of_day(text: str) -> str:
    parse_part_of_day(text)
    return text


class MaintenancePart(BaseModel):
    """Base of the section and of sections in it."""

    model_config = ConfigDict(extra="forbid", frozen=True)


PartOfDay = Annotated[str, AfterValidator(_check_part_of_day)]


class CleanupConfig(MaintenancePart):
    """Cleanup: deletion of expired entries from the log."""

    enabled: bool = Field(
        default=False,
        description="Whether log entries older than the table's delta.logRetentionDuration are"
        " deleted, never before this daemon's pipelines have delivered them. The deleted versions"
        " can no longer be read. Of a Kartothek dataset, data files that neither its metadata nor"
        " a ledger names are deleted; of a Lance table, versions that no pipeline needs; of a"
        " TileDB array, fragments that were merged.",
        examples=[False],
    )
    older_than: Seconds | None = Field(
        default=None,
        ge=0,
        le=DECADE_SECONDS,
        description="Minimum age of deleted entries; at least the table's own retention. Of the"
        " data files of a Kartothek dataset, at least 24 hours; of the versions of a Lance table,"
        " 14 days by default.",
        examples=["60d"],
    )
    every: Seconds = Field(
        default=3600.0,
        ge=60,
        le=WEEK_SECONDS,
        description="Interval between cleanup checks.",
        examples=["1h"],
    )
    keep_from: int | None = Field(
        default=None,
        ge=0,
        description="A version that must stay readable, with all later ones.",
        examples=[120],
    )
    wait_for_pins: list[str] = Field(
        default_factory=list,
        description="Consumers outside of this configuration: nothing is deleted until each has"
        " set its pin (`tailerd maintain --pin`).",
        examples=[["nightly-export"]],
    )


class MaintenanceConfig(MaintenancePart):
    """Maintenance of a table of any format; a format's own section adds its fields."""

    cleanup: CleanupConfig = Field(
        default_factory=CleanupConfig, description="Deletion of expired entries."
    )
    not_between: list[PartOfDay] = Field(
        default_factory=list,
        description="Parts of the day, in UTC, in which only checksums are written.",
        examples=[["08:00-09:30"]],
    )

    @property
    def runs_on(self) -> str:
        """Return the engine for jobs that are too large for one process."""
        return "arrow"

    @model_validator(mode="after")
    def _cleans_up_sensibly(self) -> Self:
        # Only these: the other fields were always accepted together with `enabled: false`.
        for name in ("older_than", "keep_from"):
            if not self.cleanup.enabled and getattr(self.cleanup, name) is not None:
                raise ValueError(f"cleanup.{name} is set, but cleanup.enabled is false")
        if _covers_whole_day(self.not_between):
            raise ValueError("not_between covers the whole day, so nothing would be done")
        return self


def maintenance_class(table_format: str) -> type[MaintenanceConfig]:
    """Return a format's model of the section `maintenance`; the common one if it has none.

    Raises:
        ConfigError: The format is unknown, or the distribution that provides it cannot be loaded.
    """
    own: type[MaintenanceConfig] | None = getattr(
        format_class(table_format)(), "maintenance_config", None
    )
    return own or MaintenanceConfig


def read_maintenance(where: str, section: dict[str, Any], table_format: str) -> MaintenanceConfig:
    """Parse the section `maintenance` of a table with its format's model.

    Args:
        where: The section's path, for errors.
        table_format: `auto` selects the format by the fields, because formats' own fields differ.

    Raises:
        ConfigError: A field is unknown or invalid.
    """
    if table_format == AUTO:
        table_format = _format_with(section)
    model = maintenance_class(table_format)
    for name in section:
        if name not in model.model_fields:
            raise unknown_field(where, str(name), table_format, model.model_fields)
    try:
        return model.model_validate(section)
    except ValidationError as error:
        raise describe_error(error, model, prefix_with(where), where) from None


def _format_with(section: dict[str, Any]) -> str:
    """Return the first format that has all fields of a section, else the one with the most."""
    known: dict[str, int] = {}
    for name in format_names():
        fields = maintenance_class(name).model_fields.keys()
        if section.keys() <= fields:
            # Further formats are not imported: one of another distribution may fail to load.
            return name
        known[name] = len(section.keys() & fields)
    return max(known, key=known.__getitem__)


def _covers_whole_day(parts: list[str]) -> bool:
    free = set(range(24 * 60))
    for start, end in map(parse_part_of_day, parts):
        inside = range(start, end) if start < end else (*range(start, 24 * 60), *range(end))
        free.difference_update(inside)
    return not free
