"""Messages between Delta's maintenance and its engine program: a checkpoint request and answer."""

from __future__ import annotations

from typing import Literal

import msgspec

from tailerd.formats.delta.log.log_writer import CheckpointResult
from tailerd.formats.delta.log.v2_manifest import ManifestKind


class CheckpointRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Write a checkpoint of the newest version."""

    manifest: ManifestKind = "json"

    def to_json(self) -> bytes:
        """Return the request as one JSON object."""
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, text: bytes) -> CheckpointRequest:
        """Read what `to_json` wrote."""
        return msgspec.json.decode(text, type=cls)


class CheckpointAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A `CheckpointResult` without its snapshot."""

    version: int
    outcome: Literal["written", "already_there"]
    files: tuple[str, ...]
    size_bytes: int
    reused_files: tuple[str, ...]
    add_files: int
    is_hinted: bool

    def to_json(self) -> bytes:
        """Return the answer as one JSON object."""
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, text: bytes) -> CheckpointAnswer:
        """Read what `to_json` wrote."""
        return msgspec.json.decode(text, type=cls)

    @classmethod
    def of(cls, result: CheckpointResult) -> CheckpointAnswer:
        """Return the answer of a checkpoint that was written."""
        return cls(
            version=result.version,
            outcome=result.outcome,
            files=result.files,
            size_bytes=result.size_bytes,
            reused_files=result.reused_files,
            add_files=result.add_files,
            is_hinted=result.is_hinted,
        )

    def result(self) -> CheckpointResult:
        """Return the result of the checkpoint."""
        return CheckpointResult(
            version=self.version,
            outcome=self.outcome,
            files=self.files,
            size_bytes=self.size_bytes,
            reused_files=self.reused_files,
            add_files=self.add_files,
            is_hinted=self.is_hinted,
        )
