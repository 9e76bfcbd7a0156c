"""The sink `append`: values of a value format, one a line, at the end of one file."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field

from tailerd.plugins import Delivery, FormatOptions, Offset, SinkConfig, SinkResources, TableRecords


class AppendSinkConfig(SinkConfig):
    """One file of lines."""

    implementation: ClassVar[str] = "tailerd_example.append_sink:AppendSink"

    kind: Literal["append"] = Field(description="One file of lines.")
    path: str = Field(description="The file.", examples=["/data/lines"])
    format: str = Field(default="json", description="Value format.", examples=["json"])

    def location(self) -> str:
        """Return the file."""
        return str(Path(self.path).absolute())


class AppendSink:
    """Appends; at least once."""

    offsets = None
    max_in_flight = 1

    def __init__(self, path: Path, records: TableRecords) -> None:
        self._path = path
        self._records = records

    @classmethod
    def from_config(cls, config: AppendSinkConfig, resources: SinkResources) -> Self:
        """Build the sink of a table."""
        options = FormatOptions(name=resources.daemon, table=resources.table)
        return cls(Path(config.path), TableRecords(config.format, options))

    async def healthcheck(self) -> None:
        """Need nothing."""

    async def resume(self, offset: Offset) -> None:
        """Leave what is there."""

    async def write(self, delivery: Delivery) -> int:
        """Append the lines of all rows."""
        rows = 0
        async for batch in delivery.batches:
            values = self._records.records(batch).values.to_pylist()
            with self._path.open("ab") as file:
                file.writelines(value + b"\n" for value in values)
            rows += batch.num_rows
        return rows

    async def aclose(self) -> None:
        """Hold nothing."""
