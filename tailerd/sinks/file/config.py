"""The configuration of files in a folder or bucket, apart so that validating it loads no Arrow."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from tailerd.config import SinkConfig, SizeBytes
from tailerd.config.locations import refuse_credentials
from tailerd.config.roll import RollConfig
from tailerd.registry import is_remote, with_first_scheme

_OF_BUCKETS = ("compression", "delivery", "partition_by")


class FileSinkConfig(SinkConfig):
    """Files in a folder or a bucket, one or more for each delivery, named in delivery order."""

    implementation: ClassVar[str] = "tailerd.sinks.file.sink:FileSink"

    kind: Literal["file"] = Field(description="Files in a folder or a bucket.")
    path: str = Field(
        min_length=1,
        description="The folder, created if it does not exist, or a URL of a bucket (s3:, az:,"
        " gs:). Each table needs its own.",
        examples=["/data/orders_changes"],
    )
    format: Literal["jsonl", "parquet"] = Field(
        default="jsonl", description="JSON lines or Parquet.", examples=["jsonl"]
    )
    max_bytes_per_file: SizeBytes = Field(
        default=128 * 1024**2,
        ge=1024,
        le=1024**4,
        description="Maximum file size, with a unit; a larger delivery is split over files. In a"
        " bucket, the size of its rows before compression.",
        examples=["128MiB"],
    )
    roll: RollConfig | None = Field(
        default=None,
        description="Gathers commits for larger files; by default each delivery is one.",
        examples=[{"max_age": "5m"}],
    )
    compression: Literal["none", "gzip", "zstd"] | None = Field(
        default=None,
        description="In a bucket: `zstd` by default for Parquet, and `gzip` for JSON lines.",
        examples=["zstd"],
    )
    partition_by: list[str] = Field(
        default_factory=list,
        description="In a bucket: columns whose values are folders `column=value`; `date(column)`"
        " makes folders `column_date=2030-12-31`, in UTC.",
        examples=[[]],
    )
    delivery: Literal["exactly-once", "at-least-once"] = Field(
        default="exactly-once",
        description="`at-least-once` is for buckets whose server has no conditional writes: two"
        " daemons at once could repeat rows there.",
        examples=["exactly-once"],
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
    def _is_a_folder_or_bucket(cls, path: str) -> str:
        if "://" not in path:
            return path
        refuse_credentials(path)
        if not is_remote(path):
            raise ValueError("give a folder of this machine, or a URL of a bucket")
        return path

    @field_validator("partition_by")
    @classmethod
    def _are_different(cls, partitions: list[str]) -> list[str]:
        if len(set(partitions)) < len(partitions) or "" in partitions:
            raise ValueError("name each column once")
        return partitions

    @model_validator(mode="after")
    def _fits_the_location(self) -> Self:
        if self.is_bucket and self.mode is not None:
            raise ValueError("mode is for files in a folder, and path is in a bucket: leave it out")
        for name in () if self.is_bucket else _OF_BUCKETS:
            if getattr(self, name) != type(self).model_fields[name].get_default(
                call_default_factory=True
            ):
                raise ValueError(f"{name} is for files in a bucket: leave it out")
        return self

    @property
    def is_bucket(self) -> bool:
        """Return whether files go to a bucket."""
        return "://" in self.path

    @property
    def is_exactly_once(self) -> bool:
        """Return whether existing files must not be replaced."""
        return self.delivery == "exactly-once"

    def select_implementation(self) -> str:
        """Return the sink of folders or that of buckets."""
        return "tailerd.sinks.bucket.sink:BucketSink" if self.is_bucket else self.implementation

    def location(self) -> str:
        """Return the folder or the URL."""
        if self.is_bucket:
            return with_first_scheme(self.path.rstrip("/"))
        return str(Path(self.path).absolute())

    def offsets_location(self) -> str:
        """Return the manifest in a bucket; files in a folder store no offset."""
        return f"{self.location()}/_tailerd" if self.is_bucket else ""

    def columns_by_field(self) -> Mapping[str, tuple[str, ...]]:
        """Return the columns of `partition_by`."""
        return {"partition_by": tuple(column_of(each) for each in self.partition_by)}

    def file_mode(self) -> int | None:
        """Return the permissions of delivered files; None if the umask applies."""
        return None if self.mode is None else int(self.mode, 8)

    def guarantee(self) -> str:
        """Return `exactly-once` for folders, because a restart replaces files that it repeats."""
        return self.delivery


def column_of(partition: str) -> str:
    """Return the column that a partition is made of: that of `date(created_at)` is created_at."""
    is_date = partition.startswith("date(") and partition.endswith(")")
    return partition[5:-1] if is_date else partition


def name_of(partition: str) -> str:
    """Return the name in folders: that of `date(created_at)` is created_at_date."""
    column = column_of(partition)
    return partition if partition == column else f"{column}_date"
