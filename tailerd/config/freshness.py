"""The section `freshness` of a table."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from tailerd.config.values import Seconds


class FreshnessConfig(BaseModel):
    """The objective of a table: its lag is within a time, for a share of all time."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    within: Seconds = Field(
        gt=0.0,
        le=30 * 86400,
        description="Longest lag of a table that is fresh, with a unit.",
        examples=["5m"],
    )
    target: float = Field(
        default=99.9,
        gt=0,
        lt=100,
        description="Percent of the time in which the table is to be fresh.",
        examples=[99.9],
    )
