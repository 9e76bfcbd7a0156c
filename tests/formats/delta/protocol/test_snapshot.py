from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from tailerd.errors import (
    BugError,
    ChecksumMismatchError,
    CorruptLogError,
    PathOutsideTableError,
    UnsupportedFeatureError,
)
from tailerd.formats.delta.protocol.actions import Metadata, Protocol, Sidecar
from tailerd.formats.delta.protocol.file_index import FileIndex
from tailerd.formats.delta.protocol.sidecar import sidecar_file
from tailerd.formats.delta.protocol.snapshot import Snapshot, TableState, first_state
from tailerd.formats.delta.protocol.version_checksum import (
    parse_version_checksum,
    validate_checksum,
)
from tests.formats.delta.log_bodies import PROTOCOL, SCHEMA, add, make_commit, metadata, remove
from tests.tables.naive_log import Action

PLAIN = Protocol(min_reader_version=1, min_writer_version=2)


def state(
    configuration: Mapping[str, str] | None = None,
    *,
    protocol: Protocol = PLAIN,
    provider: str = "parquet",
) -> TableState:
    body = metadata(configuration=dict(configuration or {}), format={"provider": provider})
    found = make_commit(body).metadata
    assert found is not None
    return TableState(version=0, protocol=protocol, metadata=found)


def snapshot(*actions: Action, with_files: bool = True) -> Snapshot:
    commit = make_commit(*actions, version=0)
    files = FileIndex()
    files.apply(commit)
    return Snapshot.from_replay(
        0,
        state=state(),
        transactions={},
        domain_metadata={},
        files=files if with_files else None,
        checkpoint_files=(),
        compactions=(),
    )


def txn(app: str, version: int) -> Action:
    return {"txn": {"appId": app, "version": version}}


def domain(name: str, text: str, *, removed: bool = False) -> Action:
    return {"domainMetadata": {"domain": name, "configuration": text, "removed": removed}}


def test_a_log_must_begin_with_protocol_and_metadata() -> None:
    for actions, lacking in (((PROTOCOL,), "metaData"), ((metadata(),), "protocol")):
        commit = make_commit(*actions)
        with pytest.raises(CorruptLogError, match=f"no {lacking} action"):
            first_state(1, commit.protocol, commit.metadata)


def test_metadata_only_and_protocol_only_commits_are_folded_over_the_chain() -> None:
    begun = state()
    renamed = begun.after(make_commit(metadata(name="new"), version=1))
    raised = renamed.after(
        make_commit({"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}}, version=2)
    )
    assert (raised.version, raised.metadata.name) == (2, "new")
    assert raised.protocol.min_reader_version == 2
    assert raised.after(make_commit(add("a"), version=3)) is raised


def test_rows_in_another_format_are_refused() -> None:
    state().check_rows()
    with pytest.raises(UnsupportedFeatureError, match="'orc'"):
        state(provider="orc").check_rows()


def test_column_mapping_is_what_the_property_says() -> None:
    mapped = Protocol(min_reader_version=2, min_writer_version=5)
    mode = {"delta.columnMapping.mode": "NAME"}
    assert state(mode, protocol=mapped).column_mapping == "name"
    assert state(protocol=mapped).column_mapping == "none"
    assert state(mode).column_mapping == "name"
    with pytest.raises(UnsupportedFeatureError, match="known are none, name, id"):
        state({"delta.columnMapping.mode": "new"}, protocol=mapped).check_rows()


@pytest.mark.parametrize(("text", "is_on"), [("true", True), (" TRUE ", True), ("1", False)])
def test_properties_are_on_when_they_say_true(text: str, is_on: bool) -> None:
    assert state({"delta.enableChangeDataFeed": text}).has_change_data_feed is is_on
    assert state({"delta.enableInCommitTimestamps": text}).has_in_commit_timestamps is is_on


def test_advancing_hands_the_files_over() -> None:
    old = snapshot(add("a"), add("b"))
    new = old.advance(make_commit(remove("a"), add("c", size=5)))
    assert (old.num_files, old.size_bytes) == (2, 20)
    assert (new.version, new.num_files, new.size_bytes) == (1, 2, 15)
    assert new.files.num_files == 2
    with pytest.raises(BugError, match="moved on to version 1"):
        _ = old.files
    with pytest.raises(BugError, match="moved on"):
        old.advance(make_commit(add("d")))


@pytest.mark.parametrize("version", [0, 2, 9])
def test_advancing_refuses_a_gap_and_leaves_the_snapshot_as_it_was(version: int) -> None:
    begun = snapshot(add("a"))
    with pytest.raises(CorruptLogError, match=f"Version {version} cannot follow version 0"):
        begun.advance(make_commit(add("b"), version=version))
    assert begun.files.num_files == 1


def test_a_snapshot_without_files_has_none_and_advances() -> None:
    begun = snapshot(add("a"), with_files=False)
    assert begun.num_files is None
    new = begun.advance(make_commit(add("b"), txn("app", 1)))
    assert (new.num_files, new.transactions["app"].version) == (None, 1)
    with pytest.raises(BugError, match="without files"):
        _ = new.files


def test_the_newest_transaction_and_domain_of_each_name_counts() -> None:
    one = snapshot(PROTOCOL).advance(
        make_commit(txn("a", 1), txn("b", 1), domain("d", "1"), domain("e", ""))
    )
    two = one.advance(make_commit(txn("a", 5), domain("d", "2"), version=2))
    three = two.advance(make_commit(domain("d", "", removed=True), version=3))
    assert {app: action.version for app, action in three.transactions.items()} == {"a": 5, "b": 1}
    assert two.domain_metadata["d"].configuration == "2"
    assert set(three.domain_metadata) == {"e"}
    assert set(one.domain_metadata) == {"d", "e"}
    again = three.advance(make_commit(domain("d", "3"), version=4))
    assert again.domain_metadata["d"].configuration == "3"


def checksum(**fields: object) -> bytes:
    return json.dumps({"numMetadata": 1, "histogramOpt": {"x": [1]}, **fields}).encode()


def test_a_right_checksum_passes_and_absent_fields_are_not_compared() -> None:
    table = snapshot(add("a"), add("b"))
    full = checksum(
        numFiles=2,
        tableSizeBytes=20,
        metadata={"id": "t", "schemaString": SCHEMA},
        protocol={"minReaderVersion": 1, "minWriterVersion": 2},
    )
    for body in (full, checksum(), checksum(numFiles=2), checksum(tableSizeBytes=None)):
        parsed = parse_version_checksum(body)
        assert parsed is not None
        validate_checksum(table, parsed)


def test_a_wrong_checksum_names_every_field_that_differs() -> None:
    body = checksum(
        numFiles=3,
        tableSizeBytes=20,
        metadata={"id": "other", "schemaString": SCHEMA},
        protocol={"minReaderVersion": 2, "minWriterVersion": 2},
    )
    parsed = parse_version_checksum(body)
    assert parsed is not None
    with pytest.raises(ChecksumMismatchError) as raised:
        validate_checksum(snapshot(add("a"), add("b")), parsed)
    text = str(raised.value)
    assert "numFiles is 3 in the checksum and 2 by replay" in text
    assert "metadata.id" in text
    assert "minReaderVersion" in text
    assert "tableSizeBytes" not in text


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"numFiles":"x"}', b'{"numFiles":"\xff"}'])
def test_an_unreadable_checksum_is_none(body: bytes) -> None:
    assert parse_version_checksum(body) is None


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("x.parquet", "_sidecars/x.parquet"),
        ("a%20b.parquet", "_sidecars/a b.parquet"),
        ("file:///lake/t/_delta_log/_sidecars/x.parquet", "_sidecars/x.parquet"),
        ("../../x.parquet", "_sidecars/x.parquet"),
        ("..%2F..%2Fx.parquet", "_sidecars/x.parquet"),
    ],
)
def test_a_sidecar_always_lies_in_its_folder(path: str, name: str) -> None:
    assert sidecar_file(Sidecar(path=path), 3).name == name


@pytest.mark.parametrize("path", ["", "..", ".", "x/", "%2e%2e", "a/.."])
def test_a_sidecar_that_is_no_file_is_refused(path: str) -> None:
    with pytest.raises(PathOutsideTableError, match="version 3"):
        sidecar_file(Sidecar(path=path), 3)


def test_metadata_may_lack_what_the_protocol_makes_optional() -> None:
    plain = Metadata(id="t", schema_string=SCHEMA)
    found = make_commit({"metaData": {"id": "t", "schemaString": SCHEMA, "format": {}}}).metadata
    assert found == plain
