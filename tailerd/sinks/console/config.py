"""The section of the console sink."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from tailerd.config import SinkConfig


class ConsoleSinkConfig(SinkConfig):
    """Standard output of the daemon."""

    implementation: ClassVar[str] = "tailerd.sinks.console.sink:ConsoleSink"

    kind: Literal["console"] = Field(description="Standard output.")
    format: Literal["jsonl"] = Field(default="jsonl", description="JSON lines.", examples=["jsonl"])
