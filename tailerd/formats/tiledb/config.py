"""The section `maintenance` of TileDB arrays."""

from __future__ import annotations

from pydantic import Field

from tailerd.config.maintenance import MaintenanceConfig, MaintenancePart


class CommitsConfig(MaintenancePart):
    """When commit files of a TileDB array are merged."""

    every_commits: int = Field(
        default=100,
        ge=2,
        le=1_000_000,
        description="Number of commit files that are in no merged file.",
        examples=[100],
    )


class FragmentMetaConfig(MaintenancePart):
    """When the metadata of fragments of a TileDB array is merged."""

    every_commits: int = Field(
        default=10,
        ge=2,
        le=1_000_000,
        description="Number of fragments whose metadata is in no merged file.",
        examples=[10],
    )


class FragmentsConfig(MaintenancePart):
    """When fragments of a TileDB array that every pipeline has delivered are merged into one."""

    every_commits: int = Field(
        ge=2,
        le=1_000_000,
        description="Number of fragments delivered by every pipeline.",
        examples=[50],
    )


class TileDBMaintenanceConfig(MaintenanceConfig):
    """Maintenance of a TileDB array, with TileDB's own functions."""

    commits: CommitsConfig | None = Field(
        default_factory=CommitsConfig,
        description="Of a TileDB array, when commit files are merged; null for never.",
    )
    fragment_meta: FragmentMetaConfig | None = Field(
        default_factory=FragmentMetaConfig,
        description="Of a TileDB array, when the metadata of fragments is merged; null for never.",
    )
    fragments: FragmentsConfig | None = Field(
        default=None,
        description="Of a TileDB array, when fragments are merged; without it, never.",
    )
