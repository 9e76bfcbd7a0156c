"""Every error tailerd raises: one tree, each class with a stable code.

A message states the problem, its cause and the remedy, in that order. The branch depends on the
origin of the error: the configuration, the table, the storage, the sink, or tailerd itself. Vendor
exceptions are mapped once, in the module that owns the vendor, with `raise ... from`.

Messages are for people. Programs use the class of an error and its fields; both are passed between
processes as data (`to_data`, `from_data`), and no program parses a message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Self, TypeVar

from tailerd.remedies import PYTHON, Reader, fill_in

MAX_CHARACTERS = 4000
"""Of a message or remedy between processes: a longer one is truncated."""
MAX_FIELD_CHARACTERS = 1024
"""Of a field between processes: as long as the names of files and objects may be."""
MAX_LEFTOVERS = 10
"""Of the files of an error between processes."""


class TailerdError(Exception):
    """Base of all errors; `str(error)` is one paragraph without a traceback.

    Every class can be created from a message and a remedy alone, as when it arrives from another
    process. Further data of a class are fields, listed in `fields`, so that they are passed on.

    Attributes:
        code: Snake case, bounded and stable: used as a metric label, by scripts, and to find the
            class in another process. No two classes have the same.
        retryable: Whether the same call may succeed later without intervention.
        exit_status: Exit status of a command that ends with this error.
        fields: Names of the fields and their types: `str`, `int`, or `tuple` of `str`.
        raw_remedy: What to do about it, with parts that depend on the reader; empty if the message
            already says so.
        table: The configured name, if it concerns one table alone: other tables of the same batch
            need not wait for it. Otherwise empty.
        version: Of the table, if it concerns one.
        where: The configuration's field or the option that asks for something impossible; empty if
            there is none.
        path: The file or folder it concerns, if the message names it; otherwise empty.
        leftovers: URLs of files that may have stayed and have to be deleted.
    """

    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False
    exit_status: ClassVar[int] = 1
    fields: ClassVar[Mapping[str, type]] = {
        "table": str,
        "version": int,
        "where": str,
        "path": str,
        "leftovers": tuple,
    }

    def __init__(
        self,
        message: str,
        *,
        remedy: str = "",
        table: str = "",
        version: int | None = None,
        where: str = "",
        path: str = "",
    ) -> None:
        self.message = _as_text(message)
        self.raw_remedy = _as_text(remedy)
        self._reader: Reader | None = None
        self.table = table
        self.version = version
        self.where = where
        self.path = path
        self.leftovers: tuple[str, ...] = ()
        super().__init__(self.message)

    @property
    def remedy(self) -> str:
        """What to do about it, in the words of the reader; by default a Python program."""
        text = fill_in(self.raw_remedy, self._reader or PYTHON)
        return text[:1].upper() + text[1:]

    def address(self, reader: Reader) -> Self:
        """Set who reads the remedy, unless that is known; return the error."""
        self._reader = self._reader or reader
        return self

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}".strip()

    def __reduce__(self) -> tuple[object, ...]:
        # Errors are pickled between processes (Spark workers); keyword arguments need this.
        return (_rebuild, (type(self), self.message, self.raw_remedy, self._fields_given()))

    def restate(self, message: str, *, remedy: str | None = None) -> Self:
        """Return an error of the same class and fields with another message, perhaps remedy."""
        reported = self.raw_remedy if remedy is None else remedy
        return _rebuild(type(self), message, reported, self._fields_given())

    def to_data(self) -> dict[str, object]:
        """Return the error as values that JSON has, bounded in size.

        Returns:
            `code`, `class`, `ancestors` (the codes of its base classes, the nearest first),
            `message`, `remedy`, and each of `fields` that is given. Nothing else of the exception
            is passed on: neither its cause nor a vendor's message.
        """
        bases = [kind for kind in type(self).__mro__[1:] if issubclass(kind, TailerdError)]
        return {
            "code": self.code,
            "class": type(self).__name__,
            "ancestors": [kind.code for kind in bases],
            "message": _bound_text(self.message, MAX_CHARACTERS),
            "remedy": _bound_text(self.raw_remedy, MAX_CHARACTERS),
            **{name: _as_json(value) for name, value in self._fields_given().items()},
        }

    @staticmethod
    def from_data(data: Mapping[str, object]) -> TailerdError:
        """Return the error that `to_data` described, in this or in another process.

        An unknown class, for instance of a newer release, becomes its nearest known ancestor.
        Fields that are unknown, or not of their type, are left out.
        """
        ancestors = data.get("ancestors")
        codes = [data.get("code"), *(ancestors if isinstance(ancestors, list) else ())]
        kind = next((known for code in codes if (known := find_class(code)) is not None), BugError)
        fields = {
            name: value
            for name, expected in kind.fields.items()
            if (value := _from_json(data.get(name), expected)) is not None
        }
        message, remedy = data.get("message"), data.get("remedy")
        return _rebuild(
            kind,
            message if isinstance(message, str) else "An error arrived without a message.",
            remedy if isinstance(remedy, str) else "",
            fields,
        )

    def _fields_given(self) -> dict[str, object]:
        given = ((name, getattr(self, name)) for name in self.fields)
        return {name: value for name, value in given if value not in (None, "", ())}


_Error = TypeVar("_Error", bound=TailerdError)


def find_class(code: object) -> type[TailerdError] | None:
    """Return the loaded class with a code; None if there is none."""
    return next((kind for kind in _walk_down(TailerdError) if kind.code == code), None)


def _walk_down(root: type[TailerdError]) -> Iterator[type[TailerdError]]:
    yield root
    for kind in root.__subclasses__():
        yield from _walk_down(kind)


def _rebuild(kind: type[_Error], message: str, remedy: str, fields: Mapping[str, object]) -> _Error:
    error = kind(message, remedy=remedy)
    for name, value in fields.items():
        setattr(error, name, value)
    return error


def _as_text(text: str) -> str:
    r"""Return a text that can be encoded: bytes of a name that is not UTF-8 appear as `\xff`."""
    try:
        raw = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raw = text.encode("utf-8", "backslashreplace")
    return raw.decode("utf-8", "backslashreplace")


def _bound_text(text: str, most: int = MAX_FIELD_CHARACTERS) -> str:
    return text if len(text := _as_text(text)) <= most else f"{text[: most - 3]}..."


def _as_json(value: object) -> object:
    if isinstance(value, tuple):
        return [_bound_text(each) for each in value[:MAX_LEFTOVERS]]
    return _bound_text(value) if isinstance(value, str) else value


def _from_json(value: object, expected: type) -> object:
    """Return a field's value; None if it is not of its type."""
    if expected is tuple:
        is_good = isinstance(value, list) and all(isinstance(each, str) for each in value)
        return tuple(value) if is_good and isinstance(value, list) else None
    # JSON's true is an int to Python.
    return value if type(value) is expected else None


class ConfigError(TailerdError):
    """The configuration or the command line requests something impossible.

    Attributes:
        mistakes: Each single one, where there are several: (path of the field, sentence). They stay
            in this process; the message has all of them.
    """

    code = "config"
    exit_status = 2
    mistakes: tuple[tuple[str, str], ...] = ()


class UsageError(ConfigError):
    """A command or function was called with invalid arguments."""

    code = "usage"


class MissingExtraError(ConfigError):
    """A required library belongs to an extra that is not installed."""

    code = "missing_extra"


class StateInUseError(ConfigError):
    """Another process works on this state folder."""

    code = "state_in_use"


class TableError(TailerdError):
    """The table cannot be read correctly."""

    code = "table"
    exit_status = 3


class NotATableError(TableError):
    """There is no `_delta_log` with commits at this location."""

    code = "not_a_table"


class UnsupportedFeatureError(TableError):
    """The table's protocol requires a feature that this release does not support."""

    code = "unsupported_feature"


class CorruptLogError(TableError):
    """A file of the log violates the protocol."""

    code = "corrupt_log"


class TornCommitError(CorruptLogError):
    """The newest commit is empty or ends in the middle of a line; its writer may still be busy."""

    code = "torn_commit"
    retryable = True


class InvalidPropertyError(TableError):
    """A table property that controls deletion has an invalid value."""

    code = "invalid_property"


class MissingVersionError(TableError):
    """A version that is needed is no longer, or not yet, in the log."""

    code = "missing_version"


class LogCleanedUpError(MissingVersionError):
    """Files of the log were removed while they were read."""

    code = "log_cleaned_up"
    retryable = True


class FilesCollectedError(MissingVersionError):
    """Data files were deleted as garbage before their rows were read."""

    code = "files_collected"


class UnreadableMetadataError(CorruptLogError):
    """A dataset's metadata file cannot be decoded; it may be in the middle of being written."""

    code = "unreadable_metadata"
    retryable = True


class LogChangedError(CorruptLogError):
    """The log changed while it was read; the next attempt starts from its current state."""

    code = "log_changed"
    retryable = True


class CommitChangedError(CorruptLogError):
    """A commit that was already read has different content, although commits are immutable."""

    code = "commit_changed"


class ChecksumMismatchError(CorruptLogError):
    """The replayed state differs from the version checksum that a writer wrote."""

    code = "checksum_mismatch"


class ZoneAssumedError(TableError):
    """Partition timestamps have no zone, and UTC is assumed: a warning."""

    code = "zone_assumed"


class InvalidDeletionVectorError(TableError):
    """A deletion vector is damaged or does not fit its descriptor."""

    code = "invalid_deletion_vector"


class MissingDataFileError(TableError):
    """A data, change or deletion-vector file that the log names does not exist."""

    code = "missing_data_file"


class UnreadableDataFileError(TableError):
    """A data file exists but is not Parquet, or its columns do not fit the schema."""

    code = "unreadable_data_file"


class TooLargeError(TableError):
    """A file of the table cannot be read within the configured `memory`."""

    code = "too_large"

    @classmethod
    def within(cls, memory_bytes: int, what: str) -> TooLargeError:
        """Return the error for a part of a file.

        Args:
            what: The part and its size, without a full stop.
        """
        mib = memory_bytes >> 20
        return cls(
            f"{what}, which cannot be read within `memory` ({mib} MiB).",
            remedy=f"If the file is intact, set `memory: {4 * mib}MiB` or more at the top of the"
            " configuration and read the table with `tailerd run` (commands without a"
            " configuration use the default); else restore the file from a backup.",
        )


class SchemaChangedError(TableError):
    """Rows of this range do not fit the schema the reader was started with.

    Attributes:
        schema_version: The version whose schema a query can go on with; None where none is known.
    """

    code = "schema_changed"
    fields: ClassVar[Mapping[str, type]] = {**TableError.fields, "schema_version": int}
    schema_version: int | None = None


class TransformsMismatchError(TableError):
    """A commit drops or changes a column that columns, rename, where or mask name."""

    code = "transforms_mismatch"


class ChangeFeedDisabledError(TableError):
    """Delta's change data feed was requested at a version where it is not enabled."""

    code = "change_feed_disabled"


class TableRecreatedError(TableError):
    """The table was dropped and created again: its id has changed."""

    code = "table_recreated"


class PathOutsideTableError(TableError):
    """A path in the log is outside the table's folder and not in `allowed_paths`."""

    code = "path_outside_table"


class LinkInPathError(TableError):
    """A file would be written or deleted through a symbolic link."""

    code = "link_in_path"


class StorageError(TailerdError):
    """A request to the storage failed."""

    code = "storage"
    retryable = True


class FileMissingError(StorageError):
    """The file does not exist."""

    code = "file_missing"
    retryable = False


class NotAFileError(StorageError):
    """There is a pipe, a socket or a device instead of a file; it is not read."""

    code = "not_a_file"
    retryable = False


class NameTooLongError(StorageError):
    """The name is too long for a file of this storage."""

    code = "name_too_long"
    retryable = False


class FileExistsAlreadyError(StorageError):
    """Another process wrote the file first."""

    code = "file_exists"
    retryable = False


class AccessDeniedError(StorageError):
    """The storage denies access to this user."""

    code = "access_denied"
    retryable = False


class BucketMissingError(StorageError):
    """The bucket does not exist."""

    code = "bucket_missing"
    retryable = False


class CredentialsExpiredError(AccessDeniedError):
    """The credentials have expired; renewed ones are used without a restart."""

    code = "credentials_expired"
    retryable = True


class ClockSkewError(StorageError):
    """The clocks of this machine and the storage differ too much, so signatures are rejected."""

    code = "clock_skew"


class ConditionalPutUnsupportedError(StorageError):
    """The storage has no conditional writes."""

    code = "conditional_put_unsupported"
    retryable = False


class SinkError(TailerdError):
    """A delivery to a sink failed."""

    code = "sink"
    retryable = True


class SinkRefusedError(SinkError):
    """A sink rejects deliveries until the cause is fixed."""

    code = "sink_refused"
    retryable = False


class IncompatibleSchemaError(SinkRefusedError):
    """The table's current schema violates the schema registry's rule, or the sink's table."""

    code = "incompatible_schema"


class ValueNotRepresentableError(SinkRefusedError):
    """A value of the table cannot be stored by the sink."""

    code = "value_not_representable"


class SchemaNotRegisteredError(SinkRefusedError):
    """A schema is not in the registry, and `auto_register` is off."""

    code = "schema_not_registered"


class SinkFencedError(SinkError):
    """Another process took over writing for this pipeline."""

    code = "sink_fenced"
    retryable = False


class SinkTooSlowError(SinkError):
    """A sink cannot finish a delivery of this size in time; a smaller one may succeed."""

    code = "sink_too_slow"


class TopicRecreatedError(SinkError):
    """A topic was deleted, or deleted and recreated: its delivered records are lost."""

    code = "topic_recreated"
    retryable = False


class CommitAheadError(SinkError):
    """A commit's timestamp is further in the future than the sink accepts."""

    code = "commit_ahead"


class EngineError(TailerdError):
    """Spark or one of its processes stopped working; offsets are safe in the checkpoints."""

    code = "engine"
    retryable = True


class BatchRetryError(EngineError):
    """A micro-batch must be written again from its beginning; the engine retries it at once."""

    code = "batch_retry"


class OffsetError(TailerdError):
    """A saved offset is unreadable, from a newer release, or of another table."""

    code = "offset"


class TransformsChangedError(OffsetError):
    """The saved offset is of a pipeline with other columns, conditions or masks."""

    code = "transforms_changed"


class PipelineReboundError(OffsetError):
    """The saved offset belongs to a pipeline with another daemon name or another sink location."""

    code = "pipeline_rebound"


class DaemonUnreachableError(TailerdError):
    """No daemon answers at the address that a command uses."""

    code = "daemon_unreachable"
    retryable = True


class DaemonRefusedError(TailerdError):
    """The running daemon refused the request of a command."""

    code = "daemon_refused"


class ExplorerBusyError(TailerdError):
    """Another query of a table is running, or a query took too long."""

    code = "explorer_busy"
    retryable = True


class MaintenanceBusyError(TailerdError):
    """Another process has the lease of a table's log maintenance."""

    code = "maintenance_busy"
    retryable = True


class PinUnreadableError(ConfigError):
    """A file that pins a table's versions is invalid."""

    code = "pin_unreadable"


class MaintenanceProcessError(TailerdError):
    """The process of a maintenance job died."""

    code = "maintenance_process"
    retryable = True


class BugError(TailerdError):
    """An internal error of tailerd: please report it."""

    code = "bug"
