"""What the page at `/` shows beside figures."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class WebConfig(BaseModel):
    """The page of the daemon. Figures are always shown; rows only where this says so."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rows: int = Field(
        default=0,
        ge=0,
        le=100,
        description="How many of a table's newest change rows its page shows. 0 keeps none;"
        " everyone who may read the page sees them. Arrow engine.",
        examples=[0],
    )
    mask: list[str] = Field(
        default_factory=list,
        description="Columns, of any table, whose values never leave the process through the page;"
        " `customer.email` is a field of a struct. Names that a table lacks are in the log.",
        examples=[["email", "card_number"]],
    )
