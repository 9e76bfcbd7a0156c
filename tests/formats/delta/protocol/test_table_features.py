from __future__ import annotations

import pytest

from tailerd.errors import CorruptLogError, UnsupportedFeatureError
from tailerd.formats.delta.protocol.actions import Protocol
from tailerd.formats.delta.protocol.table_features import (
    READER_FEATURES,
    check_readable,
    lacks_column_mapping,
)


def features(*names: str, reader: int = 3) -> Protocol:
    return Protocol(
        min_reader_version=reader,
        min_writer_version=7,
        reader_features=list(names),
        writer_features=list(names),
    )


def versions(reader: int, writer: int = 2) -> Protocol:
    return Protocol(min_reader_version=reader, min_writer_version=writer)


SERVED = [feature.name for feature in READER_FEATURES.values() if feature.refusal is None]
REFUSED = [feature.name for feature in READER_FEATURES.values() if feature.refusal is not None]


def test_the_features_of_the_protocol_are_all_known() -> None:
    named = {"columnMapping", "deletionVectors", "timestampNtz", "v2Checkpoint", "variantType"}
    assert named | {"typeWidening", "vacuumProtocolCheck"} <= set(SERVED)
    assert {"variantShredding", "variantShredding-preview"} <= set(SERVED)
    assert {"catalogManaged", "adaptiveMetadata"} <= set(REFUSED)


@pytest.mark.parametrize("name", SERVED)
def test_a_served_feature_is_readable(name: str) -> None:
    check_readable(features(name), 5)
    check_readable(features(name), 5, log_only=True)


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_feature_is_named_with_its_reason(name: str) -> None:
    with pytest.raises(UnsupportedFeatureError) as raised:
        check_readable(features("deletionVectors", name), 5)
    assert f"{name} ({READER_FEATURES[name].refusal})" in str(raised.value)
    assert "Version 5" in str(raised.value)
    assert "deletionVectors" not in str(raised.value)


@pytest.mark.parametrize("name", REFUSED)
def test_a_log_is_refused_only_for_features_that_change_its_meaning(name: str) -> None:
    if READER_FEATURES[name].changes_log:
        with pytest.raises(UnsupportedFeatureError, match=name):
            check_readable(features(name), 5, log_only=True)
    else:
        check_readable(features(name), 5, log_only=True)


def test_every_unknown_feature_is_named() -> None:
    with pytest.raises(UnsupportedFeatureError, match=r"one \(unknown.*two \(unknown"):
        check_readable(features("one", "columnMapping", "two"), 5)
    check_readable(features("one"), 5, log_only=True)


@pytest.mark.parametrize("version", [1, 2])
def test_older_reader_versions_are_readable(version: int) -> None:
    check_readable(versions(version), 0)


@pytest.mark.parametrize("version", [99, 4, 0, -1])
def test_an_unknown_reader_version_is_refused(version: int) -> None:
    for log_only in (False, True):
        with pytest.raises(UnsupportedFeatureError, match=f"reader version {version}"):
            check_readable(versions(version), 0, log_only=log_only)


def test_writer_features_do_not_concern_a_reader() -> None:
    protocol = Protocol(min_reader_version=1, min_writer_version=99, writer_features=["unknown"])
    check_readable(protocol, 0)


def test_reader_version_3_without_its_features_is_corrupt() -> None:
    with pytest.raises(CorruptLogError, match="no readerFeatures"):
        check_readable(versions(3, 7), 0)
    check_readable(features(), 0)


def test_column_mapping_must_be_listed_where_a_protocol_lists_features() -> None:
    assert not lacks_column_mapping(versions(2, 5))
    assert not lacks_column_mapping(versions(1))
    assert not lacks_column_mapping(features("columnMapping"))
    assert lacks_column_mapping(features("deletionVectors"))
    assert lacks_column_mapping(Protocol(min_reader_version=1, min_writer_version=7))
    for_writers = Protocol(3, 7, reader_features=[], writer_features=["columnMapping"])
    assert not lacks_column_mapping(for_writers)


@pytest.mark.attack
@pytest.mark.parametrize("name", REFUSED)
def test_a_reader_feature_that_only_writers_list_is_refused(name: str) -> None:
    for reader in (1, 3):
        protocol = Protocol(reader, 7, reader_features=[], writer_features=[name])
        with pytest.raises(UnsupportedFeatureError, match=name):
            check_readable(protocol, 0)
