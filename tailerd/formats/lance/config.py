"""The section `maintenance` of Lance tables."""

from __future__ import annotations

from pydantic import Field

from tailerd.config.maintenance import MaintenanceConfig, MaintenancePart


class CompactionConfig(MaintenancePart):
    """When fragments of a Lance table are compacted."""

    small_fragments: int = Field(
        default=20,
        ge=2,
        le=1_000_000,
        description="Number of fragments with fewer rows than target_rows.",
        examples=[20],
    )
    deleted_share: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description="Or the share of all rows that is deleted; 0 for never.",
        examples=[0.1],
    )
    target_rows: int = Field(
        default=1_048_576,
        ge=1,
        le=2**31,
        description="Rows of a fragment after compaction.",
        examples=[1_048_576],
    )


class LanceMaintenanceConfig(MaintenanceConfig):
    """Maintenance of a Lance table, with the library's own functions."""

    compaction: CompactionConfig | None = Field(
        default=None,
        description="When fragments of a Lance table are compacted; without it, never.",
    )
    optimize_indices: int | None = Field(
        default=None,
        ge=1,
        description="Number of fragments of a Lance table outside of an index after which the"
        " index is updated; null for never.",
        examples=[10],
    )
    tag: bool = Field(
        default=False,
        description="Whether the version of a Lance table that the slowest pipeline needs is"
        " tagged, so that cleanups of others keep it.",
        examples=[True],
    )
