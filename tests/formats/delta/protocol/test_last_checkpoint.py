from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailerd.formats.delta.protocol.last_checkpoint import (
    LastCheckpoint,
    canonical_form,
    compute_checksum,
    parse_last_checkpoint,
)
from tests.tables.checkpoints import hint_checksum

EXAMPLE = {
    "k0": "'v 0'",
    "checksum": "adsaskfljadfkjadfkj",
    "k1": {"k2": 2, "k3": ["v3", [1, 2], {"k4": "v4", "k5": ["v5", "v6", "v7"]}]},
}


def parsed(**fields: Any) -> LastCheckpoint | None:
    return parse_last_checkpoint(json.dumps(fields).encode())


def test_the_protocols_example_has_its_canonical_form_and_checksum() -> None:
    rest = {key: value for key, value in EXAMPLE.items() if key != "checksum"}
    assert canonical_form(rest) == (
        '"k0"="%27v%200%27","k1"+"k2"=2,"k1"+"k3"+0="v3","k1"+"k3"+1+0=1,"k1"+"k3"+1+1=2,'
        '"k1"+"k3"+2+"k4"="v4","k1"+"k3"+2+"k5"+0="v5","k1"+"k3"+2+"k5"+1="v6",'
        '"k1"+"k3"+2+"k5"+2="v7"'
    )
    assert compute_checksum(EXAMPLE) == "6a92d155a59bf2eecbd4b4ec7fd1f875"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": {"y": None, "x": "https://delta.io"}, "a": 10},
         '"a"=10,"b"+"x"="https%3A%2F%2Fdelta.io","b"+"y"=null'),
        ([None, "hi ho", 2.71], '0=null,1="hi%20ho",2=2.71'),
        ({"t": True, "f": False}, '"f"=false,"t"=true'),
        ({"ü": "~-._ü"}, '"%C3%BC"="~-._%C3%BC"'),
    ],
)  # fmt: skip
def test_values_have_the_canonical_form_of_the_protocol(value: Any, text: str) -> None:
    assert canonical_form(value) == text


def test_a_hint_says_where_the_checkpoint_is() -> None:
    assert parsed(version=7, size=3) == LastCheckpoint(version=7, size=3)
    hint = parsed(version=7, size=3, parts=2, sizeInBytes=9, checkpointSchema={"type": "struct"})
    assert hint == LastCheckpoint(version=7, size=3, parts=2)


def test_a_right_checksum_is_accepted_and_a_wrong_one_is_not() -> None:
    fields: dict[str, Any] = {"version": 7, "size": 3, "tags": {"a": [1, "x y"]}}
    assert parsed(**fields, checksum=hint_checksum(fields)) is not None
    assert parsed(**fields, checksum="0" * 32) is None
    assert parsed(**fields, checksum=5) is None


def test_numbers_count_in_the_checksum_as_they_are_written() -> None:
    rest = '"size"=1.50,"version"=1E1'
    body = b'{"version":1E1,"size":1.50,"checksum":"%s"}'
    checksum = hashlib.md5(rest.encode(), usedforsecurity=False).hexdigest()
    assert parse_last_checkpoint(body % checksum.encode()) == LastCheckpoint(version=10, size=1)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"5",
        b"[]",
        b'"text"',
        b"{}",
        b'{"version":null}',
        b'{"version":-1,"size":1}',
        b'{"version":"x"}',
        b'{"version":NaN}',
        b'{"version":Infinity}',
        b'{"version":1e999999999}',
        b'{"version":{}}',
        b'{"version":1,"version":2}',
        b'{"version":1,"tags":{"a":1,"a":2}}',
        b'{"version":7,"si',
        b'{"version":7,"size":"\xff"}',
        b'{"version":7,"t":"\\ud800","checksum":"x"}',
        b'{"version":7,"t":' + b"[" * 800 + b"]" * 800 + b',"checksum":"x"}',
        b'{"version":7,"t":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
    ids=range(21),
)
def test_a_hint_that_makes_no_sense_is_no_hint(body: bytes) -> None:
    assert parse_last_checkpoint(body) is None


@given(st.binary(max_size=40))
def test_no_bytes_are_an_error(body: bytes) -> None:
    assert parse_last_checkpoint(body) is None or b"version" in body


@given(st.integers(0, 70))
def test_a_torn_hint_is_no_hint(cut: int) -> None:
    body = json.dumps({"size": 3, "tags": {"a": "b" * 40}, "version": 12345}).encode()
    assert parse_last_checkpoint(body[:cut]) is None
