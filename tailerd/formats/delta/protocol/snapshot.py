"""A version of a table: its protocol, metadata and live files.

Protocol: PROTOCOL.md#action-reconciliation
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from tailerd.errors import BugError, CorruptLogError, UnsupportedFeatureError
from tailerd.formats.delta.protocol import table_properties as properties
from tailerd.formats.delta.protocol.actions import DomainMetadata, Metadata, Protocol, Transaction
from tailerd.formats.delta.protocol.commit_file import Commit
from tailerd.formats.delta.protocol.data_file import TableSchema
from tailerd.formats.delta.protocol.file_index import FileIndex, Origins
from tailerd.formats.delta.protocol.file_key import KeyArray
from tailerd.formats.delta.protocol.log_path import LogFile, commit_name
from tailerd.formats.delta.protocol.schema import parse_schema
from tailerd.formats.delta.protocol.table_features import check_readable, lacks_column_mapping

REMOVE_AND_ADD = (
    "Its writer is broken. RESTORE the table to a version before it, or have a writer remove that"
    " file and add it in a new commit."
)
COLUMN_MAPPING_MODES = ("none", "name", "id")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """Protocol and metadata of a version.

    Call `check_rows` before reading rows: a replay may pass unsupported states of earlier versions.
    """

    version: int
    protocol: Protocol
    metadata: Metadata

    def check_log(self) -> None:
        """Reject a version whose log is not supported.

        Raises:
            UnsupportedFeatureError, CorruptLogError: As `check_readable`.
        """
        check_readable(self.protocol, self.version, log_only=True)

    def check_rows(self) -> None:
        """Reject a version whose rows cannot be read.

        Raises:
            UnsupportedFeatureError, CorruptLogError: As `check_readable`.
        """
        check_readable(self.protocol, self.version)
        if self.metadata.format.provider != "parquet":
            raise UnsupportedFeatureError(
                f"The table's files are {self.metadata.format.provider!r}, and this release only"
                " reads Delta tables of Parquet files."
            )
        self.check_columns()

    def check_columns(self) -> None:
        """Reject a version whose columns cannot be found in its files, or in its log.

        Raises:
            UnsupportedFeatureError: The mode of column mapping is unknown, or the protocol does not
                list the feature.
            CorruptLogError: A partition column is not in the schema, in this very spelling.
        """
        self._check_column_mapping()
        partitions = self.metadata.partition_columns
        schema = parse_schema(self.metadata.schema_text) if partitions else None
        for name in partitions:
            if schema is not None and schema.find_field(name) is None:
                raise CorruptLogError(
                    f"Version {self.version} is partitioned by {name!r}, which is not a column of"
                    " its schema in this spelling.",
                    remedy="Its writer is broken: commit metadata in which both names agree.",
                )

    def _check_column_mapping(self) -> None:
        mode = self.column_mapping
        reported = f"Version {self.version} has {properties.COLUMN_MAPPING_MODE} = {mode!r}"
        if mode not in COLUMN_MAPPING_MODES:
            raise UnsupportedFeatureError(
                f"{reported}; known are {', '.join(COLUMN_MAPPING_MODES)}."
            )
        if mode != "none" and lacks_column_mapping(self.protocol):
            raise UnsupportedFeatureError(
                f"{reported}, and its protocol does not list the feature columnMapping, so the"
                " names of the columns in its files are not certain.",
                remedy="Its writer is broken: add the feature with ALTER TABLE … SET TBLPROPERTIES"
                " ('delta.feature.columnMapping' = 'supported'), or unset the property.",
            )

    @property
    def column_mapping(self) -> str:
        """`none`, `name` or `id`: the property alone decides, as in Delta Spark."""
        return self.metadata.configuration.get(properties.COLUMN_MAPPING_MODE, "none").lower()

    @property
    def schema(self) -> TableSchema:
        """The schema in the form used by tasks."""
        return TableSchema(
            text=self.metadata.schema_text,
            partition_columns=tuple(self.metadata.partition_columns),
            column_mapping=self.column_mapping,
        )

    @property
    def has_change_data_feed(self) -> bool:
        """Whether writers record row changes at this version."""
        configuration = self.metadata.configuration
        is_old = properties.CHANGE_DATA_FEED not in configuration
        name = properties.LEGACY_CHANGE_DATA_FEED if is_old else properties.CHANGE_DATA_FEED
        return properties.is_enabled(configuration, name)

    @property
    def has_in_commit_timestamps(self) -> bool:
        """Whether commits have in-commit timestamps at this version."""
        return properties.is_enabled(self.metadata.configuration, properties.IN_COMMIT_TIMESTAMPS)

    def after(self, commit: Commit) -> TableState:
        """Return the state after one more commit; the same object if nothing changes."""
        if commit.protocol is None and commit.metadata is None:
            return self
        return TableState(
            version=commit.version,
            protocol=commit.protocol or self.protocol,
            metadata=commit.metadata or self.metadata,
        )


def first_state(version: int, protocol: Protocol | None, metadata: Metadata | None) -> TableState:
    """Return the initial state of a log.

    Raises:
        CorruptLogError: The log has no protocol, or no metadata.
    """
    if protocol is None or metadata is None:
        lacking = "protocol" if protocol is None else "metaData"
        raise CorruptLogError(
            f"The log has no {lacking} action up to version {version}, and every table must start"
            " with one.",
            remedy="Its first commit is missing or broken: restore it from a backup.",
        )
    return TableState(version=version, protocol=protocol, metadata=metadata)


def named_twice(name: str) -> CorruptLogError:
    """Return the error for a file of the log that adds one file more than once."""
    return CorruptLogError(
        f"{name} adds one file more than once, which the protocol forbids: whether its rows count"
        " once or twice cannot be known.",
        remedy=REMOVE_AND_ADD,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One version of a table. Immutable; `advance` returns a new one.

    Attributes:
        state: Protocol and metadata; `state.version` is where they last changed.
        transactions: Newest `txn` of each application.
        domain_metadata: Live metadata domains.
        checkpoint_version: Version of the checkpoint it was built on; None without one.
        num_files, size_bytes: Of live files; None if the snapshot was opened without files.
        checkpoint_files: Files with the checkpoint's rows, each with the number of its first row.
        compactions: Compactions read instead of commits.
    """

    version: int
    state: TableState
    transactions: Mapping[str, Transaction] = field(default_factory=dict)
    domain_metadata: Mapping[str, DomainMetadata] = field(default_factory=dict)
    checkpoint_version: int | None = None
    num_files: int | None = None
    size_bytes: int | None = None
    checkpoint_files: tuple[tuple[LogFile, int], ...] = ()
    compactions: tuple[LogFile, ...] = ()
    _files: FileIndex | None = None
    _owner: list[int] = field(default_factory=list)

    @classmethod
    def from_replay(
        cls,
        version: int,
        *,
        state: TableState,
        transactions: Mapping[str, Transaction],
        domain_metadata: Mapping[str, DomainMetadata],
        files: FileIndex | None,
        checkpoint_files: tuple[tuple[LogFile, int], ...],
        compactions: tuple[LogFile, ...],
    ) -> Snapshot:
        """Return the snapshot resulting from a replay; it takes ownership of `files`."""
        return cls(
            version=version,
            state=state,
            transactions=transactions,
            domain_metadata=domain_metadata,
            checkpoint_version=checkpoint_files[0][0].version if checkpoint_files else None,
            num_files=None if files is None else files.num_files,
            size_bytes=None if files is None else files.size_bytes,
            checkpoint_files=checkpoint_files,
            compactions=compactions,
            _files=files,
            _owner=[version],
        )

    @property
    def files(self) -> FileIndex:
        """The live files.

        Raises:
            BugError: Opened without files, or advanced since: the index belongs to the newer one.
        """
        if self._files is None:
            raise BugError(f"The snapshot of version {self.version} was opened without files.")
        if self._owner != [self.version]:
            raise BugError(
                f"The files of version {self.version} moved on to version {self._owner[0]}."
            )
        return self._files

    def check_paths(self) -> None:
        """Reject a version in which one path is more than one file of the table.

        Raises:
            CorruptLogError: A path is live with two deletion vectors, or one commit added it twice.
        """
        version = self.files.find_repeated_add()
        if version is not None:
            raise named_twice(commit_name(version))
        if self.files.has_path_twice():
            raise CorruptLogError(
                f"Version {self.version} has one data file with two deletion vectors, or with one"
                " and without, which the protocol forbids: its rows are not certain.",
                remedy=REMOVE_AND_ADD,
            )

    def advance(self, commit: Commit) -> Snapshot:
        """Return the next version's snapshot, at a cost proportional to the commit.

        The file index is passed on: afterwards only the new snapshot has files.

        Raises:
            CorruptLogError: `commit` is not the next version.
        """
        if commit.version != self.version + 1:
            raise CorruptLogError(
                f"Version {commit.version} cannot follow version {self.version}.",
                remedy="Restore the missing log entries.",
            )
        files = self._files
        if files is not None:
            files = self.files
            files.apply(commit)
        self._owner[:] = [commit.version]
        return replace(
            self,
            version=commit.version,
            state=self.state.after(commit),
            transactions=merge_transactions(self.transactions, commit),
            domain_metadata=merge_domains(self.domain_metadata, commit),
            num_files=None if files is None else files.num_files,
            size_bytes=None if files is None else files.size_bytes,
        )

    def rebase_on(
        self,
        checkpoint_files: tuple[tuple[LogFile, int], ...],
        keys: KeyArray,
        rows: Origins,
        applications: Collection[str],
    ) -> Snapshot:
        """Return this version based on a checkpoint that was written from it.

        The file index is passed on, as by `advance`: this object has no files afterwards.

        Args:
            checkpoint_files: Files of the new checkpoint, each with the number of its first row.
            keys, rows: As `FileIndex.rebase`.
            applications: Those whose transactions are in the new checkpoint; others have expired.
        """
        self.files.rebase(self.version, keys, rows)
        return replace(
            self,
            transactions={
                name: action for name, action in self.transactions.items() if name in applications
            },
            checkpoint_version=self.version,
            checkpoint_files=checkpoint_files,
            compactions=(),
        )


def merge_transactions(
    before: Mapping[str, Transaction], commit: Commit
) -> Mapping[str, Transaction]:
    """Return the newest transaction of each application after `commit`."""
    if not commit.transactions:
        return before
    return {**before, **{action.app_id: action for action in commit.transactions}}


def merge_domains(
    before: Mapping[str, DomainMetadata], commit: Commit
) -> Mapping[str, DomainMetadata]:
    """Return the live metadata domains after `commit`; tombstones suppress earlier entries."""
    if not commit.domain_metadata:
        return before
    merged = {**before, **{action.domain: action for action in commit.domain_metadata}}
    return {domain: action for domain, action in merged.items() if not action.removed}
