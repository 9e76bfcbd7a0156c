"""Errors as data: what one process raises, another can decide by."""

from __future__ import annotations

import json
import pickle

import pytest

from tailerd.errors import (
    MAX_CHARACTERS,
    MAX_FIELD_CHARACTERS,
    BugError,
    CommitAheadError,
    CommitChangedError,
    CorruptLogError,
    MissingVersionError,
    SchemaChangedError,
    SinkError,
    TailerdError,
    find_class,
)
from tests.errors_tree import CLASSES, with_all_fields


def _described(error: TailerdError) -> tuple[object, ...]:
    given = tuple(getattr(error, name) for name in error.fields)
    return (type(error), error.message, error.remedy, str(error), *given)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.code)
def test_every_error_travels_with_all_its_fields(kind: type[TailerdError]) -> None:
    error = with_all_fields(kind)
    assert {getattr(error, name) for name in error.fields}.isdisjoint({None, "", ()})
    by_json = TailerdError.from_data(json.loads(json.dumps(error.to_data())))
    by_pickle: TailerdError = pickle.loads(pickle.dumps(error))
    assert _described(by_json) == _described(by_pickle) == _described(error)
    bare = kind("It broke.")
    assert _described(TailerdError.from_data(bare.to_data())) == _described(bare)


def test_no_two_classes_have_the_same_code() -> None:
    codes = [kind.code for kind in CLASSES]
    assert sorted(codes) == sorted(set(codes))
    assert [find_class(code) for code in codes] == CLASSES


def test_fields_do_not_hide_what_every_error_says() -> None:
    reserved = set(BugError("x").to_data())
    assert [kind for kind in CLASSES if reserved & set(kind.fields)] == []


def test_a_class_of_a_newer_release_becomes_the_nearest_known_ancestor() -> None:
    data = CommitChangedError("It changed.", version=7).to_data()
    data |= {"code": "from_the_future", "class": "FutureError", "more": [1]}
    error = TailerdError.from_data(data)
    assert (type(error), str(error), error.version) == (CorruptLogError, "It changed.", 7)
    data["ancestors"] = ["also_unknown"]
    assert type(TailerdError.from_data(data)) is BugError


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"code": 7, "ancestors": "table", "message": None, "remedy": 1},
        {"code": "sink", "table": 7, "version": True, "leftovers": ["a", 1], "path": None},
        {"code": ["sink"], "ancestors": [["table"], None, "table"]},
    ],
)
def test_what_is_not_of_its_type_is_left_out(odd: dict[str, object]) -> None:
    error = TailerdError.from_data(odd)
    assert error.message
    assert (error.table, error.version, error.leftovers, error.path) == ("", None, (), "")


def test_nothing_but_the_declared_fields_leaves_the_process() -> None:
    error = SinkError("Refused.", path="/sink")
    error.__cause__ = ValueError("password=hunter2")
    error.add_note("password=hunter2")
    error.connection = "sasl://user:hunter2@broker"  # type: ignore[attr-defined]
    assert "hunter2" not in json.dumps(error.to_data())
    assert b"hunter2" not in pickle.dumps(error)


def test_texts_are_bounded_and_can_be_encoded() -> None:
    error = SinkError("x" * 100_000, remedy="\udcff" * 100_000, path="é" * 100_000)
    data = error.to_data()
    texts = [data["message"], data["remedy"], data["path"]]
    most = [MAX_CHARACTERS, MAX_CHARACTERS, MAX_FIELD_CHARACTERS]
    assert [len(str(text)) for text in texts] == most
    assert json.dumps(data).encode()


def test_an_error_in_other_words_keeps_its_class_and_fields() -> None:
    error = with_all_fields(SchemaChangedError)
    other = error.restate("In other words.", remedy="Do that.")
    assert type(other) is SchemaChangedError
    assert str(other) == "In other words. Do that."
    assert _described(other)[4:] == _described(error)[4:]
    assert error.restate("So.").remedy == error.remedy


def test_fields_are_named_where_an_error_is_raised() -> None:
    error = MissingVersionError("Gone.", table="orders", version=3, where="start", path="/log")
    assert (error.table, error.version, error.where, error.path) == ("orders", 3, "start", "/log")
    assert CommitAheadError("Ahead.", version=4).version == 4
