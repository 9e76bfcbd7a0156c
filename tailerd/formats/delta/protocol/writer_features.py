"""Defines the tables whose logs can be maintained: every writer feature must be supported.

For a checkpoint, a compaction or a checksum, these features only require that existing actions are
repeated. Data files and commits are never written.

Protocol: PROTOCOL.md#table-features, #writer-version-requirements
"""

from __future__ import annotations

from tailerd.errors import UnsupportedFeatureError
from tailerd.formats.delta.protocol import table_properties as properties
from tailerd.formats.delta.protocol.actions import Protocol
from tailerd.formats.delta.protocol.snapshot import TableState
from tailerd.formats.delta.protocol.table_features import FEATURES_WRITER_VERSION

V2_CHECKPOINT = "v2Checkpoint"
CHECKPOINT_PROTECTION = "checkpointProtection"

HONOURED = frozenset(
    {
        # They apply only to writers of data.
        "allowColumnDefaults",
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "generatedColumns",
        "icebergCompatV1",
        "icebergCompatV2",
        "icebergCompatV3",
        "icebergWriterCompatV1",
        "icebergWriterCompatV3",
        "identityColumns",
        "invariants",
        "materializePartitionColumns",
        "vacuumProtocolCheck",
        # They change the meaning of rows, which does not affect the log.
        "collations",
        "collations-preview",
        "columnMapping",
        "timestampNtz",
        "timestampNtz-preview",
        "timestampWithoutTimezone",
        "typeWidening",
        "typeWidening-preview",
        "variantShredding",
        "variantShredding-preview",
        "variantType",
        "variantType-preview",
        # They add actions or fields, which are repeated.
        "clustering",
        "deletionVectors",
        "domainMetadata",
        "inCommitTimestamp",
        "inCommitTimestamp-preview",
        "rowTracking",
        # They apply to the log itself, and are implemented.
        CHECKPOINT_PROTECTION,
        V2_CHECKPOINT,
    }
)

_REASONS = {
    "catalogManaged": "its catalog decides which commits exist and who may maintain the log",
    "catalogOwned-preview": "its catalog decides which commits exist and who may maintain the log",
    "coordinatedCommits-preview": "its coordinator says which commits happened",
    "redirectReaderWriter": "the table has moved elsewhere",
    "redirectReaderWriter-preview": "the table has moved elsewhere",
    "redirectWriterOnly": "writers must use another table",
    "redirectWriterOnly-preview": "writers must use another table",
}


def check_maintainable(state: TableState) -> None:
    """Reject a table whose log must not be written to. Reading it is checked separately.

    Raises:
        UnsupportedFeatureError: The message names the writer version, or every unsupported feature.
    """
    state.check_log()
    state.check_columns()
    protocol = state.protocol
    if not 1 <= protocol.min_writer_version <= FEATURES_WRITER_VERSION:
        raise UnsupportedFeatureError(
            f"The table needs Delta writer version {protocol.min_writer_version}, and this release"
            f" maintains the logs of tables up to version {FEATURES_WRITER_VERSION}.",
            remedy="Its changes can still be read where its reader version allows.",
        )
    if problems := refused_features(protocol):
        raise UnsupportedFeatureError(
            f"Maintenance is skipped for this table, because it uses {', '.join(problems)}.",
            remedy="Its changes can still be read where its reader features allow.",
        )


def refused_features(protocol: Protocol) -> list[str]:
    """Return the unsupported features, each with the reason."""
    names = {*(protocol.writer_features or ()), *(protocol.reader_features or ())}
    return [
        f"{name} ({_REASONS.get(name, 'unknown to this release')})"
        for name in sorted(names - HONOURED)
    ]


def supports_v2_checkpoints(state: TableState) -> bool:
    """Return whether V2 checkpoints are written: the table supports them and does not prefer V1."""
    policy = state.metadata.configuration.get(properties.CHECKPOINT_POLICY, "v2").strip().lower()
    return V2_CHECKPOINT in (state.protocol.reader_features or ()) and policy != "classic"
