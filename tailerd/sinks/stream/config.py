"""Any Structured Streaming sink by name: the Spark engine writes it, this is only its section."""

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
        description="Options of the format, passed on as they are.",
        examples=[{"path": "/data/refunds_changes"}],
    )

    def place(self) -> str:
        """Return the path it writes to: two queries must not write to one."""
        path = self.options.get("path", "")
        return path if "://" in path or not path else str(Path(path).absolute())

    def guarantee(self) -> str:
        """Return that Spark decides it with the format."""
        return f"as Spark's format {self.format} gives it"
