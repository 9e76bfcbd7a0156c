"""Applied to the old columns, the changes of a schema give the new ones; and only if they differ.

For fields with ids and without, nested in structs, lists and maps, with marks and comments.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from hypothesis import event, given
from hypothesis import strategies as st

from tailerd.changefeed.change_batch import COLUMN_ID, COMMENT, FIELD_ID, HIDDEN, VARIANT_FIELD
from tailerd.records.schema_changes import FieldChange, Path, compare_schemas

LEAVES = [pa.int32(), pa.int64(), pa.string(), pa.float64(), pa.decimal128(5, 2), pa.date32()]
VARIANT = pa.struct([pa.field("metadata", pa.binary()), pa.field("value", pa.binary())])
NAMES = ["a", "b", "c", "d.e"]


def fields(key: bytes | None, depth: int = 2) -> st.SearchStrategy[list[pa.Field]]:
    """Return lists of fields with different names and ids."""
    leaf = st.sampled_from(LEAVES)
    inside = leaf if depth == 0 else st.deferred(lambda: types(key, depth - 1))

    def build(
        names: list[str], ids: list[int], kinds: list[pa.DataType], words: list[str], marks: int
    ) -> list[pa.Field]:
        found = []
        for index, name in enumerate(names):
            metadata = {} if key is None else {key: str(ids[index]).encode()}
            if words[index]:
                metadata[COMMENT] = words[index].encode()
            kind = kinds[index]
            if marks == index:
                kind, metadata = VARIANT, {**metadata, **VARIANT_FIELD}
            found.append(pa.field(name, kind, bool(ids[index] % 2), metadata))
        return found

    return st.builds(
        build,
        st.lists(st.sampled_from(NAMES), unique=True, max_size=4),
        st.permutations([1, 2, 3, 4, 5]),
        st.lists(inside, min_size=4, max_size=4),
        st.lists(st.sampled_from(["", "", "x", "y"]), min_size=4, max_size=4),
        st.integers(0, 9),
    )


def types(key: bytes | None, depth: int) -> st.SearchStrategy[pa.DataType]:
    leaf = st.sampled_from(LEAVES)
    struct = fields(key, depth).map(pa.struct)
    element = struct.map(lambda kind: pa.list_(pa.field("element", kind, nullable=False)))
    entries = struct.map(lambda kind: pa.map_(pa.string(), kind))
    return leaf | struct | element | entries


PAIRS = st.sampled_from([None, FIELD_ID, COLUMN_ID]).flatmap(
    lambda key: st.tuples(fields(key), fields(key) | fields(None))
)


def apply(old: Sequence[pa.Field], changes: Sequence[FieldChange], above: Path) -> list[pa.Field]:
    """Do what a reader of the changes does."""
    here = [each for each in changes if each.path and each.path[:-1] == above]
    dropped = {each.path[-1] for each in here if each.kind == "dropped"}
    names = {each.field.name: each.path[-1] for each in here if each.kind == "renamed"}
    found = [
        apply_one(field, (*above, names.get(field.name, field.name)), changes)
        for field in old
        if field.name not in dropped
    ]
    for each in changes:
        if each.kind == "reordered" and each.path == above:
            order = list(map(str, each.facts["to"]))  # type: ignore[call-overload]
            found.sort(key=lambda field: order.index(field.name))
    for each in here:
        if each.kind == "added":
            found.insert(int(str(each.facts["position"])), each.field)
    return found


def apply_one(old: pa.Field, path: Path, changes: Sequence[FieldChange]) -> pa.Field:
    own = {each.kind: each for each in changes if each.path == path and each.kind != "dropped"}
    marks, kind = dict(old.metadata or {}), old.type
    retyped = own.get("retyped") or own.get("widened")
    if retyped is not None:
        comment = {COMMENT: marks.get(COMMENT, b"")}
        marks, kind = {**(retyped.field.metadata or {}), **comment}, retyped.field.type
    elif pa.types.is_struct(kind):
        kind = pa.struct(apply(list(kind), changes, path))
    elif pa.types.is_list(kind):
        kind = pa.list_(apply_one(kind.value_field, (*path, "element"), changes))
    elif pa.types.is_map(kind):
        value = apply_one(kind.item_field, (*path, "value"), changes)
        kind = pa.map_(apply_one(kind.key_field, (*path, "key"), changes), value)
    if "comment" in own:
        marks[COMMENT] = str(own["comment"].facts["to"]).encode()
    is_nullable = "required" not in own and (old.nullable or "nullable" in own)
    return pa.field(path[-1], kind, is_nullable, marks)


def shown(fields: Sequence[pa.Field]) -> list[object]:
    """Return what is compared: all but ids."""
    found: list[object] = []
    for field in fields:
        marks = {k: v for k, v in (field.metadata or {}).items() if v}
        marks = {k: v for k, v in marks.items() if k not in (FIELD_ID, COLUMN_ID)}
        kind = field.type
        parts: object = str(kind)
        if pa.types.is_struct(kind):
            parts = shown(list(kind))
        elif pa.types.is_list(kind):
            parts = ["list", *shown([kind.value_field.with_name("element")])]
        elif pa.types.is_map(kind):
            parts = ["map", *shown([kind.key_field, kind.item_field])]
        found.append((field.name, field.nullable, marks, parts))
    return found


@given(PAIRS)
def test_the_changes_applied_to_the_old_columns_give_the_new(
    pair: tuple[list[pa.Field], list[pa.Field]],
) -> None:
    old, new = pair
    changes = compare_schemas(pa.schema(old), pa.schema(new))
    assert shown(apply(old, changes, ())) == shown(new)
    for change in changes:
        event(change.kind)
        assert str(change)
        assert change.to_json()["change"] == change.kind


@given(PAIRS)
def test_equal_columns_have_no_changes(pair: tuple[list[pa.Field], list[pa.Field]]) -> None:
    for each in pair:
        assert compare_schemas(pa.schema(each), pa.schema(each)) == ()


@given(PAIRS)
def test_hidden_columns_are_not_compared(pair: tuple[list[pa.Field], list[pa.Field]]) -> None:
    old, new = pair
    hidden = pa.field("secret", pa.string(), metadata={HIDDEN: b"1"})
    found = compare_schemas(pa.schema(old), pa.schema([*new, hidden]))
    assert found == compare_schemas(pa.schema(old), pa.schema(new))
