"""The fields of a table that say which columns, rows, values and commits are delivered."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

SECTION = ConfigDict(
    extra="forbid",
    frozen=True,
    coerce_numbers_to_str=True,
    # `explain` hides secret values; a traceback would show them.
    hide_input_in_errors=True,
)
"""Of every section of a table."""


class SkipConfig(BaseModel):
    """Commits that are not delivered: those that have one of these."""

    model_config = SECTION

    operations: list[str] = Field(
        default_factory=list,
        description="Operations as the log names them, such as OPTIMIZE or RESTORE.",
        examples=[["RESTORE"]],
    )
    application_ids: list[str] = Field(
        default_factory=list,
        description="Writers that number their transactions (Delta's `txn`), such as a consumer of"
        " this feed that writes back into the table.",
        examples=[["feed-consumer"]],
    )
    user_metadata: str = Field(
        default="",
        description="The text that a writer attached to the commit (Delta's `userMetadata`).",
        examples=["backfill"],
    )

    @model_validator(mode="after")
    def _names_something(self) -> Self:
        if not (self.operations or self.application_ids or self.user_metadata):
            raise ValueError("name operations, application_ids or user_metadata")
        return self


class CommitsConfig(BaseModel):
    """Which commits are delivered."""

    model_config = SECTION

    skip: SkipConfig = Field(description="Commits that are not delivered.")


class TruncateConfig(BaseModel):
    """A mask for dates, times and numbers."""

    model_config = SECTION

    truncate: str = Field(
        description="A unit of time (year, month, day, hour), or a number to whose multiples"
        " numbers are rounded towards zero.",
        examples=["year"],
    )


class TransformConfig(BaseModel):
    """What is delivered of a table."""

    model_config = SECTION

    columns: list[str] | dict[Literal["include", "exclude"], list[str]] | None = Field(
        default=None,
        description="Columns and fields (`a.b`) to deliver, in this order, or `{exclude: [...]}`:"
        " all but these. Only these are read. By default, all.",
        examples=[["order_id", "amount"]],
    )
    rename: dict[str, str] = Field(
        default_factory=dict,
        description="New names by column or field; `key` and other names of columns in the sink"
        " are the new ones.",
        examples=[{"order_id": "id"}],
    )
    where: str | None = Field(
        default=None,
        description="Condition in SQL that delivered rows meet. An update whose row enters it is an"
        " insert, one whose row leaves it a delete.",
        examples=["region = 'EU' and amount > 10"],
    )
    mask: dict[str, str | TruncateConfig | None] = Field(
        default_factory=dict,
        description="How values are replaced, by column or field: `hash` (HMAC-SHA-256 with"
        " `mask_key`, so equal values stay equal), `redact` (`***`), `null`, `partial` (the last 4"
        " characters) or `{truncate: UNIT}` (year, month, day, hour, or a number).",
        examples=[{"email": "hash"}],
    )
    mask_key: SecretStr | None = Field(
        default=None,
        description="Secret of the mask `hash`; without it, the variable TAILERD_MASK_KEY.",
        examples=["${file:/run/secrets/mask}"],
    )
    unchanged: Literal["keep", "drop"] = Field(
        default="keep",
        description="`drop`: leave out updates that change nothing that is delivered.",
        examples=["keep"],
    )
    commits: CommitsConfig | None = Field(
        default=None,
        description="Which commits are delivered; by default, all. Not with a snapshot or `net`,"
        " which have the rows of all commits.",
    )

    def view_settings(self) -> dict[str, Any]:
        """Return the fields that make a view, but for the secret."""
        return self.model_dump(include={"columns", "rename", "where", "mask", "unchanged"})
