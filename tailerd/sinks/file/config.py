"""The file sink's configuration, in its own module so that validating it does not load Arrow."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from tailerd.config import SinkConfig, SizeBytes


class FileSinkConfig(SinkConfig):
    """Files in a folder, one or more for each delivery, whose names sort in delivery order."""

    implementation: ClassVar[str] = "tailerd.sinks.file.sink:FileSink"

    kind: Literal["file"] = Field(description="Files in a folder.")
    path: str = Field(
        min_length=1,
        description="The folder; created if it does not exist. Each table needs its own.",
        examples=["/data/orders_changes"],
    )
    format: Literal["jsonl", "parquet"] = Field(
        default="jsonl", description="JSON lines or Parquet.", examples=["jsonl"]
    )
    max_bytes_per_file: SizeBytes = Field(
        default=128 * 1024**2,
        ge=1024,
        le=1024**4,
        description="Maximum file size, with a unit; a larger delivery is split over files.",
        examples=["128MiB"],
    )

    mode: str | None = Field(
        default=None,
        pattern="^0?[67][0-7]{2}$",
        description="Permissions of delivered files as a quoted octal number. By default 0666 less"
        " the umask of the process.",
        examples=["0640"],
    )

    @field_validator("path")
    @classmethod
    def _is_a_folder(cls, path: str) -> str:
        if "://" in path:
            raise ValueError("give a folder of this machine, not a URL")
        return path

    def location(self) -> str:
        """Return the folder."""
        return str(Path(self.path).absolute())

    def file_mode(self) -> int | None:
        """Return the permissions of delivered files; None if the umask applies."""
        return None if self.mode is None else int(self.mode, 8)

    def guarantee(self) -> str:
        """Return `exactly-once`: a restart replaces the files that it repeats."""
        return "exactly-once"
