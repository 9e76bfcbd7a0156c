"""What is said to a program that writes one checkpoint, and its answer: JSON, one line each."""

from __future__ import annotations

import msgspec

from tailerd import errors
from tailerd.errors import BugError, EngineError, TailerdError
from tailerd.formats.delta.log.log_writer import CheckpointResult
from tailerd.formats.delta.log.v2_manifest import ManifestKind


class CheckpointRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Write a checkpoint of the newest version.

    Attributes:
        place: Path or URL of the table.
        master, conf: Of the Spark session.
        storage: How files are reached, as `StoreSettings.to_json`; may hold secrets.
    """

    place: str
    manifest: ManifestKind = "json"
    master: str = "local[*]"
    conf: dict[str, str] = {}
    storage: dict[str, msgspec.Raw] = {}


class CheckpointAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What became of it: `error` is the class of an error, or empty, and then the rest counts."""

    error: str = ""
    message: str = ""
    hint: str = ""
    version: int = 0
    is_written: bool = False
    files: tuple[str, ...] = ()
    size_bytes: int = 0
    reused_files: tuple[str, ...] = ()
    add_files: int = 0
    is_hinted: bool = False

    @classmethod
    def of(cls, result: CheckpointResult) -> CheckpointAnswer:
        """Return the answer of a program that did it."""
        return cls(
            version=result.version,
            is_written=result.outcome == "written",
            files=result.files,
            size_bytes=result.size_bytes,
            reused_files=result.reused_files,
            add_files=result.add_files,
            is_hinted=result.is_hinted,
        )

    @classmethod
    def failed(cls, error: TailerdError) -> CheckpointAnswer:
        """Return the answer of a program that could not."""
        return cls(error=type(error).__name__, message=error.message, hint=error.hint)

    def result(self) -> CheckpointResult:
        """Return what became of it.

        Raises:
            TailerdError: What the program raised.
        """
        if self.error:
            kind = getattr(errors, self.error, None)
            if not (isinstance(kind, type) and issubclass(kind, TailerdError)):
                kind = BugError
            raise kind(self.message, hint=self.hint)
        return CheckpointResult(
            version=self.version,
            outcome="written" if self.is_written else "already_there",
            files=self.files,
            size_bytes=self.size_bytes,
            reused_files=self.reused_files,
            add_files=self.add_files,
            is_hinted=self.is_hinted,
        )


def answer_in(line: bytes, last_words: str) -> CheckpointAnswer:
    """Read an answer.

    Args:
        last_words: What the program wrote to standard error, for the error's text.

    Raises:
        EngineError: It is none: the program died.
    """
    try:
        return msgspec.json.decode(line, type=CheckpointAnswer)
    except msgspec.MsgspecError as error:
        raise EngineError(
            f"The Spark program that writes checkpoints ended without an answer: {last_words}",
            hint="Look at `spark.master` and `spark.conf`, and at the memory there is.",
        ) from error
