"""The section `maintenance` of a table: when its log is shortened, and when it is left alone."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from tailerd.config.values import Seconds, SizeBytes

_SECTION = ConfigDict(extra="forbid", frozen=True)
_PART_OF_DAY = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")
_WEEK = 7 * 86_400.0
_DECADE = 3653 * 86_400.0


def minutes_of(part_of_day: str) -> tuple[int, int]:
    """Return start and end of `22:00-06:00` in minutes after midnight.

    Raises:
        ValueError: The text has another form, or is no part of the day.
    """
    match = _PART_OF_DAY.fullmatch(part_of_day)
    if match is None:
        raise ValueError("write the times of a day as HH:MM-HH:MM in UTC, such as 08:00-18:00")
    start, end = (int(match[n]) * 60 + int(match[n + 1]) for n in (1, 3))
    if start == end:
        raise ValueError("it begins when it ends; to do nothing at all, leave `maintenance` out")
    return start, end


def _check_part_of_day(text: str) -> str:
    minutes_of(text)
    return text


PartOfDay = Annotated[str, AfterValidator(_check_part_of_day)]


class CheckpointConfig(BaseModel):
    """When a checkpoint is written: the first limit that is reached counts."""

    model_config = _SECTION

    every_commits: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="So many commits after the last checkpoint. Without it, what the table's"
        " delta.checkpointInterval says, or 10.",
        examples=[10],
    )
    every_bytes: SizeBytes | None = Field(
        default=64 * 1024**2,
        ge=1024,
        le=1024**4,
        description="So many bytes of commits after it.",
        examples=["64MiB"],
    )
    every_age: Seconds | None = Field(
        default=None,
        ge=1,
        le=_DECADE,
        description="Maximum time after the first commit since the checkpoint, even if there are"
        " few.",
        examples=["1h"],
    )
    max_replay: Seconds | None = Field(
        default=None,
        ge=0.001,
        le=3600,
        description="So long, as estimated, does a reader need that opens the table cold.",
        examples=["1s"],
    )
    min_interval: Seconds = Field(
        default=10.0,
        ge=0,
        le=_WEEK,
        description="Minimum time between two checkpoints of any writer.",
        examples=["10s"],
    )
    quiet: Seconds = Field(
        default=0.0,
        ge=0,
        le=86_400,
        description="Wait for this long without commits, but at most until ten times as many"
        " commits as make it due.",
        examples=["0s"],
    )
    manifest: Literal["json", "parquet"] = Field(
        default="json",
        description="Form of the manifest of a V2 checkpoint, where the table has that feature.",
        examples=["json"],
    )

    @model_validator(mode="after")
    def _agrees(self) -> CheckpointConfig:
        for name in ("min_interval", "quiet"):
            if self.every_age is not None and getattr(self, name) > self.every_age:
                raise ValueError(
                    f"{name} is longer than every_age, so what is due by age would never be done"
                    " in time"
                )
        return self


class LogCompactionConfig(BaseModel):
    """When commits between two checkpoints are put together into one file."""

    model_config = _SECTION

    every_commits: int = Field(
        ge=2,
        le=100_000,
        description="So many commits that are in no checkpoint and in no compaction.",
        examples=[100],
    )


class FragmentsConfig(BaseModel):
    """When fragments of a TileDB array that every pipeline has delivered are merged into one."""

    model_config = _SECTION

    every_commits: int = Field(
        ge=2,
        le=1_000_000,
        description="So many fragments behind the slowest pipeline.",
        examples=[50],
    )


class CleanupConfig(BaseModel):
    """Whether what has expired is deleted from the log."""

    model_config = _SECTION

    enabled: bool = Field(
        default=False,
        description="Whether log entries that the table's delta.logRetentionDuration lets go are"
        " deleted. Versions before what is left cannot be read again. Never before this daemon's"
        " pipelines have delivered them. Of a Kartothek dataset, data files that neither its"
        " metadata nor a ledger names; of a Lance table, versions that no pipeline needs.",
        examples=[False],
    )
    older_than: Seconds | None = Field(
        default=None,
        ge=0,
        le=_DECADE,
        description="Keep entries so long, which must not be shorter than the table says; of a"
        " Kartothek dataset files, for 24 hours at least; of a Lance table versions, for 14 days by"
        " default.",
        examples=["60d"],
    )
    every: Seconds = Field(
        default=3600.0,
        ge=60,
        le=_WEEK,
        description="Time between two looks for what has expired.",
        examples=["1h"],
    )
    keep_from: int | None = Field(
        default=None,
        ge=0,
        description="A version that must stay readable, with all that follow.",
        examples=[120],
    )
    wait_for_pins: list[str] = Field(
        default_factory=list,
        description="Consumers outside of this configuration without whose pins"
        " (`tailerd maintain --pin`) nothing is deleted.",
        examples=[["nightly-export"]],
    )


class CompactionConfig(BaseModel):
    """When fragments of a Lance table are compacted."""

    model_config = _SECTION

    small_fragments: int = Field(
        default=20,
        ge=2,
        le=1_000_000,
        description="So many fragments of fewer rows than target_rows.",
        examples=[20],
    )
    deleted_share: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description="Or this share of all rows is deleted; 0 for never.",
        examples=[0.1],
    )
    target_rows: int = Field(
        default=1_048_576,
        ge=1,
        le=2**31,
        description="Rows of a fragment.",
        examples=[1_048_576],
    )


class MaintenanceConfig(BaseModel):
    """What is done for a table's log, beside any other writer."""

    model_config = _SECTION

    engine: Literal["arrow", "spark"] = Field(
        default="arrow",
        description="What writes checkpoints: tailerd itself, or a Spark program whose tasks write"
        " sidecars in parallel, for a table that has too many files for one process. That needs"
        " V2 checkpoints. Where it runs is said in the section `spark`.",
        examples=["arrow"],
    )
    checkpoint: CheckpointConfig | None = Field(
        default_factory=CheckpointConfig,
        description="When a checkpoint is written; null for never.",
    )
    log_compaction: LogCompactionConfig | None = Field(
        default=None,
        description="When commits are put together into one file, for readers between checkpoints;"
        " without it, never.",
    )
    fragments: FragmentsConfig | None = Field(
        default=None,
        description="Of a TileDB array, when fragments are merged; without it, never.",
    )
    checksum: bool = Field(
        default=False,
        description="Whether the newest version gets a checksum where its writer left none.",
        examples=[True],
    )
    compaction: CompactionConfig | None = Field(
        default=None,
        description="When fragments of a Lance table are compacted; without it, never.",
    )
    optimize_indices: int | None = Field(
        default=None,
        ge=1,
        description="Fragments of a Lance table outside of an index that make it due to be brought"
        " up to date; null for never.",
        examples=[10],
    )
    tag: bool = Field(
        default=False,
        description="Whether the version of a Lance table that the slowest pipeline needs is"
        " tagged, so that cleanups of others keep it.",
        examples=[True],
    )
    cleanup: CleanupConfig = Field(
        default_factory=CleanupConfig, description="Whether what has expired is deleted."
    )
    not_between: list[PartOfDay] = Field(
        default_factory=list,
        description="Parts of the day, in UTC, in which nothing is done but checksums.",
        examples=[["08:00-09:30"]],
    )

    @model_validator(mode="after")
    def _agrees(self) -> MaintenanceConfig:
        cleanup, checkpoint = self.cleanup, self.checkpoint
        others = self.compaction or self.optimize_indices or self.tag or self.fragments
        if not (checkpoint or self.log_compaction or self.checksum or cleanup.enabled or others):
            raise ValueError("everything is switched off, so nothing would be maintained")
        if self.engine == "spark" and (self.checksum or checkpoint is None):
            raise ValueError(
                "engine is spark, for tables too large for one process, but a checksum needs all"
                " files in one process: leave checksum out"
                if self.checksum
                else "engine is spark, but checkpoint is null, and Spark does nothing else"
            )
        # The others have been taken beside `enabled: false` from the beginning.
        for name in ("older_than", "keep_from"):
            if not cleanup.enabled and getattr(cleanup, name) is not None:
                raise ValueError(f"cleanup.{name} is set, but cleanup.enabled is false")
        longest = max(
            (checkpoint.every_age or 0.0, checkpoint.min_interval) if checkpoint else (0.0,)
        )
        if cleanup.older_than is not None and cleanup.older_than < longest:
            raise ValueError(
                "cleanup.older_than is shorter than the time between two checkpoints, so entries"
                " would expire that no checkpoint stands for"
            )
        if _covers_whole_day(self.not_between):
            raise ValueError("not_between leaves no part of the day in which to do anything")
        return self


def _covers_whole_day(parts: list[str]) -> bool:
    free = set(range(24 * 60))
    for start, end in map(minutes_of, parts):
        inside = range(start, end) if start < end else (*range(start, 24 * 60), *range(end))
        free.difference_update(inside)
    return not free
