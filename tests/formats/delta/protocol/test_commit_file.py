from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailerd.errors import CorruptLogError, TornCommitError
from tailerd.formats.delta.protocol import commit_file
from tailerd.formats.delta.protocol.commit_file import (
    CommitScan,
    LineDecoder,
    decode_lines,
    scan_commit,
)
from tailerd.formats.delta.protocol.file_key import file_key
from tests.formats.delta.log_bodies import (
    PROTOCOL,
    add,
    body_of,
    cdc,
    make_commit,
    metadata,
    remove,
)
from tests.formats.delta.log_bodies import vector as inline

NAME = "00000000000000000001.json"
WHOLE = body_of(
    {"commitInfo": {"operation": "WRITE", "inCommitTimestamp": 5}},
    PROTOCOL,
    metadata(),
    add("a%20b", size=3, **inline("x")),
    add("c", dataChange=False),
    remove("d", size=4),
    cdc("_change_data/e"),
    {"txn": {"appId": "app", "version": 1}},
    {"domainMetadata": {"domain": "d", "configuration": "{}", "removed": False}},
    {"somethingNew": {"x": [1, 2]}},
)


def scan(body: bytes) -> commit_file.Commit:
    return scan_commit(1, NAME, body)


def test_a_commit_tells_everything_but_the_bodies_of_its_file_actions() -> None:
    commit = scan(WHOLE)
    assert commit.is_info_first
    assert commit.timestamp_in_commit_ms == 5
    assert commit.protocol is not None
    assert commit.metadata is not None
    assert [txn.app_id for txn in commit.transactions] == ["app"]
    assert [domain.domain for domain in commit.domain_metadata] == ["d"]
    assert list(commit.added_keys) == [file_key("a b", "ix"), file_key("c", None)]
    assert list(commit.added_paths) == [file_key("a b", None), file_key("c", None)]
    assert list(commit.added_sizes) == [3, 10]
    assert list(commit.removed_keys) == [file_key("d", None)]
    assert (commit.added.files, commit.added.size_bytes) == (2, 13)
    assert (commit.data_added.files, commit.data_added.size_bytes) == (1, 3)
    assert (commit.removed.files, commit.removed.size_bytes) == (1, 4)
    assert (commit.change_files.files, commit.change_files.size_bytes) == (1, 10)
    assert commit.has_vectors
    assert commit.size_bytes == len(WHOLE)


def test_feeding_byte_by_byte_equals_feeding_the_whole() -> None:
    bytewise = CommitScan(1, NAME)
    for at in range(len(WHOLE)):
        bytewise.feed(WHOLE[at : at + 1])
    assert bytewise.finish() == scan(WHOLE)


@given(cuts=st.lists(st.integers(0, len(WHOLE)), max_size=12), has_end=st.booleans())
def test_feeding_in_any_pieces_equals_feeding_the_whole(cuts: list[int], has_end: bool) -> None:
    body = WHOLE if has_end else WHOLE[:-1]
    pieces = CommitScan(1, NAME)
    positions = [0, *sorted(cuts), len(body)]
    for start, end in itertools.pairwise(positions):
        pieces.feed(body[start:end])
    assert pieces.finish() == scan(body)


@given(st.integers(1, 64))
def test_the_decoder_says_where_its_next_line_begins(step: int) -> None:
    decoder = LineDecoder(NAME)
    for start in range(0, len(WHOLE), step):
        decoder.feed(WHOLE[start : start + step])
        done = decoder.bytes_done
        assert done == 0 or WHOLE[done - 1 : done] == b"\n"
        assert decoder.has_rest == (done < min(start + step, len(WHOLE)))
    assert decoder.bytes_done == len(WHOLE)


def test_slices_cover_a_large_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_file, "SLICE_BYTES", 100)
    parts = list(commit_file.slices(WHOLE))
    assert b"".join(parts) == WHOLE
    assert max(map(len, parts)) == 100
    assert sum(len(lines) for lines in decode_lines(NAME, parts)) == 10


@pytest.mark.parametrize("cut", range(1, len(body_of(add("a"))) - 1))
def test_a_torn_last_line_is_not_a_commit_yet(cut: int) -> None:
    body = body_of(PROTOCOL) + body_of(add("a"))[:cut]
    with pytest.raises(TornCommitError, match=NAME) as raised:
        scan(body)
    assert raised.value.retryable


@pytest.mark.parametrize("body", [b"", b"\n", b" \r\n\n "])
def test_a_file_without_any_action_is_torn(body: bytes) -> None:
    with pytest.raises(TornCommitError, match="empty"):
        scan(body)


def test_a_last_line_without_its_end_counts() -> None:
    assert scan(WHOLE[:-1]).domain_metadata == scan(WHOLE).domain_metadata


def test_carriage_returns_and_blank_lines_mean_nothing() -> None:
    body = b"\r\n\n" + WHOLE.replace(b"\n", b"\r\n\r\n  \n")
    commit = scan(body)
    commit.size_bytes = len(WHOLE)
    assert commit == scan(WHOLE)


@pytest.mark.parametrize(
    "line",
    [
        b"no json",
        b'{"add":',
        b"[]",
        b"null",
        b"5",
        b'{"add":5}',
        b'{"add":{"size":1}}',
        b'{"add":{"path":5}}',
        b'{"add":{"path":"a","size":"10"}}',
        b'{"add":{"path":"a","size":1.5}}',
        b'{"add":{"path":"a","size":99999999999999999999}}',
        b'{"add":{"path":"\xff"}}',
        b'{"add":{"path":"a","deletionVector":{"storageType":"u"}}}',
        b'{"protocol":{"minReaderVersion":"1","minWriterVersion":2}}',
        b'{"metaData":{"schemaString":"x"}}',
        b'{"txn":{"appId":"a"}}',
        b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
    ids=range(17),
)
def test_a_line_that_is_no_action_is_named(line: bytes) -> None:
    with pytest.raises(CorruptLogError, match=f"Line 3 of {NAME}") as raised:
        scan(body_of(PROTOCOL, add("a")) + line + b"\n" + body_of(add("b")))
    assert not isinstance(raised.value, TornCommitError)


@pytest.mark.parametrize("line", [b'{"add":{"path":5}}', b'{"add":{"path":5', b"[]"])
def test_a_last_line_that_can_never_become_an_action_is_corrupt_and_not_torn(line: bytes) -> None:
    with pytest.raises(CorruptLogError, match=f"Line 2 of {NAME}") as raised:
        scan(body_of(PROTOCOL) + line)
    assert not raised.value.retryable


def test_a_last_line_of_broken_text_is_one_clear_error() -> None:
    with pytest.raises(CorruptLogError, match=NAME):
        scan(body_of(PROTOCOL) + b'{"add":{"path":"\xff"}}')


def test_unknown_actions_and_fields_are_ignored() -> None:
    commit = make_commit(
        {"futureAction": {"path": "x"}},
        {},
        add("a", futureField={"y": 1}, tags={"t": "u"}, size=7),
        {"protocol": {**PROTOCOL["protocol"], "futureField": [1]}},
        {"checkpointMetadata": {"version": 9}},
        {"sidecar": {"path": "s", "sizeInBytes": 1, "modificationTime": 1}},
    )
    assert list(commit.added_sizes) == [7]
    assert commit.protocol is not None
    assert commit.info is None


NULLS = dict.fromkeys(
    ["add", "remove", "cdc", "metaData", "protocol", "txn", "domainMetadata", "commitInfo"]
)


def test_fields_that_are_null_are_absent() -> None:
    actions: list[dict[str, Any]] = [
        {"commitInfo": {"operation": "W"}},
        PROTOCOL,
        metadata(),
        add("a", stats=None, deletionVector=None, size=None),
        remove("b", partitionValues=None, size=None),
        {"txn": {"appId": "app", "version": 1}},
        {"domainMetadata": {"domain": "d", "configuration": "", "removed": False}},
        {},
    ]
    commit = make_commit(*({**NULLS, **action} for action in actions))
    plain = make_commit(*actions)
    plain.size_bytes = commit.size_bytes
    assert commit == plain
    assert commit.is_info_first


@pytest.mark.parametrize(
    ("info", "timestamp"),
    [
        ("null", None),
        ("5", None),
        ('"text"', None),
        ("[]", None),
        ("{}", None),
        ('{"inCommitTimestamp":"5"}', None),
        ('{"inCommitTimestamp":5.5}', None),
        ('{"inCommitTimestamp":true}', None),
        ('{"inCommitTimestamp":5,"operation":7,"operationMetrics":[1],"engineInfo":null}', 5),
        ('{"inCommitTimestamp":5,"x":1e999}', None),
    ],
)
def test_provenance_of_any_shape_is_no_error(info: str, timestamp: int | None) -> None:
    body = f'{{"commitInfo":{info}}}\n'.encode() + body_of(add("a"))
    commit = scan(body)
    assert commit.timestamp_in_commit_ms == timestamp
    assert list(commit.added_sizes) == [10]
    if commit.info is not None:
        assert commit.info.operation == ""
        assert commit.info.operation_metrics == {}


def test_provenance_of_broken_text_counts_as_absent() -> None:
    commit = scan(b'{"commitInfo":{"operation":"\xff"}}\n' + body_of(add("a")))
    assert commit.info is not None
    assert commit.info.operation == ""


def test_metrics_may_be_numbers_or_texts() -> None:
    info = {"operationMetrics": {"a": 0, "b": "1"}, "operation": "MERGE"}
    read = make_commit({"commitInfo": info}).info
    assert read is not None
    assert read.operation_metrics == {"a": "0", "b": "1"}


def test_provenance_that_is_not_first_is_told_apart() -> None:
    assert not make_commit(PROTOCOL, {"commitInfo": {"inCommitTimestamp": 5}}).is_info_first


@pytest.mark.parametrize("action", [metadata(), PROTOCOL], ids=["metaData", "protocol"])
def test_two_metadata_or_protocol_actions_are_refused(action: dict[str, Any]) -> None:
    with pytest.raises(CorruptLogError, match=f"two {next(iter(action))} actions"):
        make_commit(action, action)


def test_many_keys_are_packed_into_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    actions = [action for n in range(20) for action in (add(f"a{n}"), remove(f"r{n}"))]
    plain = make_commit(*actions)
    monkeypatch.setattr(commit_file, "PACK_AT_LEAST", 10)
    packed = make_commit(*actions)
    assert not isinstance(packed.added_keys, list)
    for name in ("added_keys", "removed_keys", "added_paths", "removed_paths", "added_sizes"):
        assert list(getattr(packed, name)) == getattr(plain, name)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
actions_of_any_shape = st.dictionaries(
    st.sampled_from([*NULLS, "sidecar", "x"]),
    json_values | st.dictionaries(st.sampled_from(["path", "size", "id", "version"]), json_values),
    max_size=2,
)


@given(st.lists(actions_of_any_shape, max_size=4), st.binary(max_size=8))
def test_any_lines_are_a_commit_or_one_clear_error(lines: list[Any], tail: bytes) -> None:
    body = b"".join(json.dumps(line).encode() + b"\n" for line in lines) + tail
    try:
        commit = scan(body)
    except CorruptLogError:
        return
    assert commit.size_bytes == len(body)
