"""The section `maintenance` of Delta tables."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from tailerd.config.maintenance import (
    DECADE_SECONDS,
    WEEK_SECONDS,
    MaintenanceConfig,
    MaintenancePart,
)
from tailerd.config.values import Seconds, SizeBytes


class CheckpointConfig(MaintenancePart):
    """When a checkpoint is written: when the first of these limits is reached."""

    every_commits: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="Number of commits after the last checkpoint. Default: the table's"
        " delta.checkpointInterval, or 10.",
        examples=[10],
    )
    every_bytes: SizeBytes | None = Field(
        default=64 * 1024**2,
        ge=1024,
        le=1024**4,
        description="Size of the commits after the last checkpoint.",
        examples=["64MiB"],
    )
    every_age: Seconds | None = Field(
        default=None,
        ge=1,
        le=DECADE_SECONDS,
        description="Maximum time after the first commit since the checkpoint, even if there are"
        " few.",
        examples=["1h"],
    )
    max_replay: Seconds | None = Field(
        default=None,
        ge=0.001,
        le=3600,
        description="Estimated time that a reader without a cache needs to replay the commits.",
        examples=["1s"],
    )
    min_interval: Seconds = Field(
        default=10.0,
        ge=0,
        le=WEEK_SECONDS,
        description="Minimum time between two checkpoints of any writer.",
        examples=["10s"],
    )
    quiet: Seconds = Field(
        default=0.0,
        ge=0,
        le=86_400,
        description="Wait until there was no commit for this long, but only up to ten times the"
        " number of commits that make a checkpoint due.",
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
                    f"{name} is longer than every_age, so jobs that are due by age would never"
                    " run in time"
                )
        return self


class LogCompactionConfig(MaintenancePart):
    """When commits between two checkpoints are merged into one file."""

    every_commits: int = Field(
        ge=2,
        le=100_000,
        description="Number of commits that are in no checkpoint and no compaction.",
        examples=[100],
    )


class DeltaMaintenanceConfig(MaintenanceConfig):
    """Maintenance of a table's log, in parallel with other writers."""

    engine: Literal["arrow", "spark"] = Field(
        default="arrow",
        description="What writes checkpoints: tailerd itself, or a Spark program whose tasks write"
        " sidecars in parallel, for a table that has too many files for one process. That needs V2"
        " checkpoints. The section `spark` says where it runs.",
        examples=["arrow"],
    )
    checkpoint: CheckpointConfig | None = Field(
        default_factory=CheckpointConfig,
        description="When a checkpoint is written; null for never.",
    )
    log_compaction: LogCompactionConfig | None = Field(
        default=None,
        description="When commits are merged into one file, for readers between checkpoints;"
        " without it, never.",
    )
    checksum: bool = Field(
        default=False,
        description="Whether the newest version gets a checksum if its writer wrote none.",
        examples=[True],
    )

    @property
    def runs_on(self) -> str:
        """Return what writes checkpoints."""
        return self.engine

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        cleanup, checkpoint = self.cleanup, self.checkpoint
        if not (checkpoint or self.log_compaction or self.checksum or cleanup.enabled):
            raise ValueError("everything is switched off, so nothing would be maintained")
        if self.engine == "spark" and (self.checksum or checkpoint is None):
            raise ValueError(
                "engine is spark, for tables too large for one process, but a checksum needs all"
                " files in one process: leave checksum out"
                if self.checksum
                else "engine is spark, but checkpoint is null, and Spark does nothing else"
            )
        longest = max(
            (checkpoint.every_age or 0.0, checkpoint.min_interval) if checkpoint else (0.0,)
        )
        if cleanup.older_than is not None and cleanup.older_than < longest:
            raise ValueError(
                "cleanup.older_than is shorter than the time between two checkpoints, so entries"
                " would expire that no checkpoint covers"
            )
        return self
