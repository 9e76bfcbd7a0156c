"""The configuration of a Structured Streaming sink, which the Spark engine writes."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from tailerd.config import SinkConfig


class StreamSinkConfig(SinkConfig):
    """A Spark streaming sink, with Spark's own option names."""

    engines: ClassVar[frozenset[str]] = frozenset({"spark"})

    kind: Literal["stream"] = Field(description="A Structured Streaming sink.")
    format: str = Field(
        min_length=1, description="Spark's name of the format.", examples=["parquet", "delta"]
    )
    options: dict[str, str] = Field(
        default_factory=dict,
        description="Options of the format, passed on unchanged.",
        examples=[{"path": "/data/refunds_changes"}],
    )

    def location(self) -> str:
        """Return the output path: two queries must not write to the same one."""
        path = self.options.get("path", "")
        return path if "://" in path or not path else str(Path(path).absolute())

    def guarantee(self) -> str:
        """Return that the guarantee depends on Spark's format."""
        return f"as Spark's format {self.format} gives it"
