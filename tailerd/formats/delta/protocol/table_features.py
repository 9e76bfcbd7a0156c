"""Defines which tables can be read. One row per feature; an unknown reader feature is an error.

Protocol: PROTOCOL.md#table-features, #reader-version-requirements
"""

from __future__ import annotations

from dataclasses import dataclass

from tailerd.errors import CorruptLogError, UnsupportedFeatureError
from tailerd.formats.delta.protocol.actions import Protocol

MAX_READER_VERSION = 3
FEATURES_READER_VERSION = 3
FEATURES_WRITER_VERSION = 7
COLUMN_MAPPING = "columnMapping"
COLUMN_MAPPING_READER_VERSION = 2


@dataclass(frozen=True, slots=True)
class ReaderFeature:
    """A feature that readers must support.

    Attributes:
        how: How this reader handles it.
        refusal: Why it is not supported; None if it is.
        changes_log: Whether it also changes the interpretation of the log.
    """

    name: str
    how: str
    refusal: str | None = None
    changes_log: bool = False


_CATALOG_MANAGED = (
    "its commits are ratified by a catalog, and the log folder alone may lack the newest ones"
    " or hold some that never happened"
)
_MOVED = "the table has moved elsewhere"
_MANIFESTS = "its file actions are in manifests outside the log, which are not supported yet"

_FEATURES = (
    ReaderFeature(COLUMN_MAPPING, "columns are found by physical name or field id"),
    ReaderFeature("deletionVectors", "deleted rows are left out, differences become changes"),
    ReaderFeature("timestampNtz", "timestamps without zone"),
    ReaderFeature("timestampNtz-preview", "timestamps without zone"),
    ReaderFeature("timestampWithoutTimezone", "an old name of timestampNtz"),
    ReaderFeature("typeWidening", "old files are cast to the commit's type"),
    ReaderFeature("typeWidening-preview", "old files are cast to the commit's type"),
    ReaderFeature("v2Checkpoint", "manifests and sidecars are read"),
    ReaderFeature("vacuumProtocolCheck", "concerns only VACUUM"),
    ReaderFeature("variantType", "variants are given as the JSON they hold"),
    ReaderFeature("variantType-preview", "variants are given as the JSON they hold"),
    ReaderFeature("variantShredding", "typed columns of variants are put together"),
    ReaderFeature("variantShredding-preview", "typed columns of variants are put together"),
    ReaderFeature("catalogManaged", "not supported", _CATALOG_MANAGED, changes_log=True),
    ReaderFeature("catalogOwned-preview", "not supported", _CATALOG_MANAGED, changes_log=True),
    ReaderFeature("adaptiveMetadata", "not supported", _MANIFESTS, changes_log=True),
    ReaderFeature("adaptiveMetadata-preview", "not supported", _MANIFESTS, changes_log=True),
    ReaderFeature("redirectReaderWriter", "not supported", _MOVED),
    ReaderFeature("redirectReaderWriter-preview", "not supported", _MOVED),
)
READER_FEATURES = {feature.name: feature for feature in _FEATURES}


def check_readable(protocol: Protocol, version: int, *, log_only: bool = False) -> None:
    """Reject a protocol that is not supported at `version`.

    Args:
        log_only: Check only whether the log can be interpreted, to inspect it. A table whose rows
            cannot be read can still be inspected, if its protocol names the features it requires.

    Raises:
        UnsupportedFeatureError: The message names the reader version, or every unsupported feature.
        CorruptLogError: The protocol contradicts itself.
    """
    names = protocol.reader_features
    is_listed = bool(names) and protocol.min_reader_version >= FEATURES_READER_VERSION
    if not 1 <= protocol.min_reader_version <= MAX_READER_VERSION and not (log_only and is_listed):
        raise UnsupportedFeatureError(
            f"Version {version} needs Delta reader version {protocol.min_reader_version}, and this"
            f" release reads versions 1 to {MAX_READER_VERSION}.",
            remedy="Use a newer tailerd, or lower the table's protocol with DROP FEATURE.",
        )
    # Some writers list features of readers for writers only.
    listed = sorted(_list_features(protocol) & READER_FEATURES.keys() - set(names or ()))
    if protocol.min_reader_version < FEATURES_READER_VERSION:
        names = []
    if names is None:
        raise CorruptLogError(
            f"The protocol of version {version} has reader version 3 but no readerFeatures,"
            " which the protocol requires.",
            remedy="The writer is broken: restore the log entry, or commit a complete protocol.",
        )
    if problems := [problem for name in (*names, *listed) if (problem := _problem(name, log_only))]:
        raise UnsupportedFeatureError(
            f"Version {version} uses table features this release cannot read correctly:"
            f" {', '.join(problems)}.",
            remedy="Use a newer tailerd, or drop the feature with ALTER TABLE … DROP FEATURE.",
        )


def _problem(name: str, log_only: bool) -> str | None:
    feature = READER_FEATURES.get(name)
    if feature is None:
        return None if log_only else f"{name} (unknown to this release)"
    if feature.refusal is None or (log_only and not feature.changes_log):
        return None
    return f"{name} ({feature.refusal})"


def lacks_column_mapping(protocol: Protocol) -> bool:
    """Return whether a protocol that lists its features does not list column mapping anywhere.

    A list that has it for writers only is enough: such tables exist, and Delta Spark follows the
    property alone. Protocols without lists are older than them.
    """
    if protocol.min_reader_version == COLUMN_MAPPING_READER_VERSION:
        return False
    is_listed = (
        protocol.min_reader_version >= FEATURES_READER_VERSION
        or protocol.min_writer_version >= FEATURES_WRITER_VERSION
    )
    return is_listed and COLUMN_MAPPING not in _list_features(protocol)


def _list_features(protocol: Protocol) -> set[str]:
    return {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
