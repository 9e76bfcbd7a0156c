"""Parses the metadata file of a dataset: JSON, or msgpack compressed with zstd. Pure.

Specification: "Main metadata file", "Attributes".
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from tailerd.changefeed.limits import ALLOWANCE_BYTES, DEFAULT_MEMORY_BYTES
from tailerd.errors import (
    TableError,
    TooLargeError,
    UnreadableMetadataError,
    UnsupportedFeatureError,
)

SUPPORTED_VERSION = 4
MARK = ".by-dataset-metadata."
SUFFIXES = ("json", "msgpack.zstd")
"""In order of precedence: an update of a msgpack dataset writes JSON, and keeps the other file."""

_NAME = re.compile(r"(?P<uuid>[A-Za-z0-9+_.-]+)\.by-dataset-metadata\.(json|msgpack\.zstd)")
PARQUET = ".parquet"
CREATION_TIME = "creation_time"


_DECODED = 4
"""Memory for the decoded content, as a multiple of its bytes."""
_PIECE_BYTES = 1 << 20


def check_size(size_bytes: int, memory_bytes: int, name: str) -> None:
    """Make sure that a metadata file can be decoded within `memory`.

    Args:
        size_bytes: Of its content, decompressed as far as known.

    Raises:
        TooLargeError: It cannot.
    """
    if size_bytes > (memory_bytes + ALLOWANCE_BYTES) // _DECODED:
        raise TooLargeError.within(
            memory_bytes, f"The metadata file {name} has {size_bytes >> 20} MiB or more"
        )


def metadata_name(uuid: str, suffix: str) -> str:
    """Return the name of a dataset's metadata file."""
    return f"{uuid}{MARK}{suffix}"


def parse_metadata_name(name: str) -> str | None:
    """Return the dataset whose metadata file has this name; None for any other file."""
    found = _NAME.fullmatch(name)
    return None if found is None else found["uuid"]


class _Partition(msgspec.Struct, gc=False):
    files: dict[str, str]


class _Stored(msgspec.Struct):
    """The attributes that are read; others are ignored."""

    dataset_metadata_version: Any = None
    dataset_uuid: Any = None
    partitions: dict[str, _Partition] | None = None
    metadata: dict[str, Any] = {}
    indices: dict[str, Any] = {}
    partition_keys: Any = None


_json = msgspec.json.Decoder(_Stored)
_msgpack = msgspec.msgpack.Decoder(_Stored)


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetMetadata:
    """The content of a metadata file.

    Attributes:
        uuid: Name of the dataset.
        creation_time: When it was created or overwritten, as written; may be empty.
        files: Keys of the data files of each table, sorted; literal names, never decoded.
        indices: Secondary indices: column -> key of its file.
        user_metadata: The annotations except `creation_time`, as JSON with sorted keys.
    """

    uuid: str
    creation_time: str
    files: dict[str, list[str]]
    indices: dict[str, str]
    user_metadata: str


def parse_metadata(
    content: bytes, uuid: str, suffix: str, memory_bytes: int = DEFAULT_MEMORY_BYTES
) -> DatasetMetadata:
    """Parse a metadata file.

    Args:
        uuid: The dataset in its name.
        suffix: One of `SUFFIXES`.
        memory_bytes: The configured `memory`.

    Raises:
        TooLargeError: It does not fit the memory.
        UnreadableMetadataError: It cannot be decoded; it may be complete at a retry.
        UnsupportedFeatureError: It is of another version, has no partitions, or references files
            that are not Parquet.
        TableError: It is of another dataset, or references files of another one.
    """
    stored = _decode_content(content, uuid, suffix, memory_bytes)
    _check(stored, uuid)
    files: dict[str, list[str]] = {}
    for partition in (stored.partitions or {}).values():
        for table, key in partition.files.items():
            files.setdefault(table, []).append(key)
    for table, keys in files.items():
        _check_keys(uuid, table, keys)
        keys.sort()
    notes = dict(stored.metadata)
    creation_time = str(notes.pop(CREATION_TIME, ""))
    return DatasetMetadata(
        uuid=uuid,
        creation_time=creation_time,
        files=files,
        indices={str(name): str(key) for name, key in sorted(stored.indices.items())},
        user_metadata=msgspec.json.encode(notes, order="sorted").decode(),
    )


def _decode_content(content: bytes, uuid: str, suffix: str, memory_bytes: int) -> _Stored:
    try:
        if suffix == "json":
            check_size(len(content), memory_bytes, metadata_name(uuid, suffix))
            return _json.decode(content)
        body, piece = bytearray(), bytearray(_PIECE_BYTES)
        with pa.CompressedInputStream(io.BytesIO(content), "zstd") as stream:
            # A few bytes may become gigabytes.
            # And PyArrow's `read` leaks its buffer where it fails.
            while size := stream.readinto(piece):
                body += memoryview(piece)[:size]
                check_size(len(body), memory_bytes, metadata_name(uuid, suffix))
        return _msgpack.decode(body)
    except (
        msgspec.MsgspecError,
        UnicodeDecodeError,
        RecursionError,
        OSError,
        pa.ArrowException,
    ) as e:
        raise UnreadableMetadataError(
            f"The metadata file {metadata_name(uuid, suffix)} cannot be read: {e}.",
            remedy="It is incomplete, or its content does not match its name: restore it, or let"
            " its writer write it again.",
        ) from e


def _check(stored: _Stored, uuid: str) -> None:
    if stored.dataset_metadata_version != SUPPORTED_VERSION:
        raise UnsupportedFeatureError(
            f"The dataset {uuid} has metadata of version {stored.dataset_metadata_version!r}, and"
            f" only version {SUPPORTED_VERSION} can be read.",
            remedy="Let a current release of its writer rewrite it.",
        )
    if stored.dataset_uuid != uuid:
        raise TableError(
            f"The metadata file of {uuid} says that it belongs to {stored.dataset_uuid!r}.",
            remedy="It was copied or renamed: give it back its name.",
        )
    if stored.partitions is None:
        raise UnsupportedFeatureError(
            f"The metadata of {uuid} names no partitions, so only a listing could show which"
            " files belong to it, and a listing also has files that failed writers left.",
            remedy="Let its writer store the dataset with explicit partitions.",
        )


def _check_keys(uuid: str, table: str, keys: list[str]) -> None:
    prefix = f"{uuid}/{table}/"
    for key in keys:
        # Reject keys that leave the dataset's folder: metadata could reference any file.
        if not key.startswith(prefix) or "/../" in key or "/./" in key or "//" in key:
            raise TableError(
                f"The metadata of {uuid} names the file {key!r}, which is not below {prefix}.",
                remedy="A dataset has its files to itself: the metadata was made by hand, or the"
                " dataset was renamed.",
            )
        if not key.endswith(PARQUET):
            raise UnsupportedFeatureError(
                f"The metadata of {uuid} names the file {key!r}, and only Parquet can be read.",
                remedy="Let its writer store the dataset as Parquet.",
            )
