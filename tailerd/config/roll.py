"""How long a sink of files gathers commits for one file."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field

from tailerd.config.values import Seconds, SizeBytes


class RollConfig(BaseModel):
    """Commits are gathered until one of both is reached; rows wait in the table meanwhile."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_age: Seconds = Field(
        default=300.0,
        ge=1.0,
        le=86400.0,
        description="Age of the oldest commit at which a file is written, with a unit.",
        examples=["5m"],
    )
    max_bytes: SizeBytes = Field(
        default=128 * 1024**2,
        ge=1024,
        le=1024**4,
        description="Size of the data files of all gathered commits at which a file is written,"
        " with a unit.",
        examples=["128MiB"],
    )


@runtime_checkable
class Rolls(Protocol):
    """A sink's section that has the field.

    Attributes:
        roll: None: each delivery is written at once.
    """

    roll: RollConfig | None
