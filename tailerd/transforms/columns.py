"""Which columns and nested fields a feed has, in which order and under which names."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from tailerd.errors import UsageError
from tailerd.transforms.mask import Hasher, Mask

Path = tuple[str, ...]
"""The name of a column, then those of the fields inside it."""


def parse_path(text: str) -> Path:
    """Return the path of `column` or `column.field`; a name with a dot is in backticks.

    Raises:
        UsageError: A name is empty, or a backtick is missing.
    """
    names, name, is_quoted = [], "", False
    for character in f"{text}.":
        if character == "`":
            is_quoted = not is_quoted
        elif character == "." and not is_quoted:
            names.append(name)
            name = ""
        else:
            name += character
    if is_quoted or not all(names):
        raise UsageError(
            f"{text!r} is not the name of a column.",
            remedy="Write a, a.b for a field inside it, or `a.b` for a name that has a dot.",
        )
    return tuple(names)


@contextmanager
def naming_option(option: str) -> Iterator[None]:
    """Note the option that causes an error in the error."""
    try:
        yield
    except UsageError as error:
        error.where = error.where or option
        raise


def suggest(name: str, names: Sequence[str], kind: str) -> str:
    """Return the remedy for a name that is not there."""
    close = difflib.get_close_matches(name, names, n=1)
    return f"Did you mean {close[0]!r}?" if close else f"The {kind} are {', '.join(names)}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """A column or field that is delivered.

    Attributes:
        index: Its position among the columns, or among the fields of its struct.
        path: Its names in the table.
        name: Its name in the feed.
        fields: The delivered fields of a struct; empty: all of them.
        mask: Replaces its values; None: they are delivered.
    """

    index: int
    path: Path
    name: str
    fields: tuple[Output, ...] = ()
    mask: Mask | None = None

    def field(self, source: pa.Field) -> pa.Field:
        """Return the field of the feed."""
        kind = source.type
        if self.fields:
            kind = pa.struct([each.field(kind.field(each.index)) for each in self.fields])
        found = pa.field(self.name, kind, source.nullable, source.metadata)
        return found if self.mask is None else self.mask.field(found)

    def values(self, values: pa.Array, source: pa.Field, hasher: Hasher) -> pa.Array:
        """Return the values of the feed."""
        if self.mask is not None:
            return self.mask.values(values, source, hasher)
        if not self.fields:
            return values
        inside = [source.type.field(each.index) for each in self.fields]
        parts = [
            each.values(pc.struct_field(values, [each.index]), field, hasher)
            for each, field in zip(self.fields, inside, strict=True)
        ]
        fields = [each.field(field) for each, field in zip(self.fields, inside, strict=True)]
        mask = values.is_null() if values.null_count else None
        return pa.StructArray.from_arrays(parts, fields=fields, mask=mask)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which columns and fields are delivered.

    Attributes:
        include: Their paths, in this order; None for everything.
        exclude: Paths that are not delivered.
        names: New names by path.
        masks: Masks by path.
    """

    include: Sequence[Path] | None
    exclude: frozenset[Path]
    names: Mapping[Path, str]
    masks: Mapping[Path, Mask]

    def outputs(self, fields: Sequence[pa.Field], above: Path = ()) -> tuple[Output, ...]:
        """Return the delivered part of fields; paths that they lack are left out.

        Args:
            fields: Columns, or the fields of a struct.
            above: Path of the struct.

        Raises:
            UsageError: Two of them have one name.
        """
        found: list[Output] = []
        indexes = {field.name: index for index, field in enumerate(fields)}
        requested = list(indexes)
        if self.include is not None:
            requested = list(dict.fromkeys(path[0] for path in self.include))
        for name in requested:
            if name in indexes and (*above, name) not in self.exclude:
                output = self._output(name, indexes[name], fields[indexes[name]], above)
                if output is not None:
                    found.append(output)
        given = [output.name for output in found]
        if twice := [name for name in given if given.count(name) > 1]:
            raise UsageError(
                f"Two columns would have the name {twice[0]!r}.", remedy="Rename one of them."
            )
        return tuple(found)

    def _output(self, name: str, index: int, field: pa.Field, above: Path) -> Output | None:
        path = (*above, name)
        below = None
        if self.include is not None and (name,) not in self.include:
            below = [each[1:] for each in self.include if each[0] == name]
        mask = self.masks.get(path)
        inside: tuple[Output, ...] = ()
        if mask is None and pa.types.is_struct(field.type) and self._is_changed(path, below):
            inside = replace(self, include=below).outputs(list(field.type), path)
            if not inside:
                return None
        elif below is not None and not pa.types.is_struct(field.type):
            return None
        return Output(
            index=index, path=path, name=self.names.get(path, name), fields=inside, mask=mask
        )

    def _is_changed(self, path: Path, include: Sequence[Path] | None) -> bool:
        """Return whether a struct is delivered in another form than the table's."""
        return include is not None or any(
            each[: len(path)] == path and len(each) > len(path)
            for each in (*self.exclude, *self.names, *self.masks)
        )


def check_path(schema: pa.Schema, path: Path, option: str) -> pa.Field:
    """Return the field of a path.

    Raises:
        UsageError: There is none.
    """
    fields, field, before = list(schema), None, ""
    for name in path:
        if field is not None and not pa.types.is_struct(field.type):
            raise UsageError(
                f"{option} names {'.'.join(path)!r}, but {before!r} has no fields: its type is"
                f" {field.type}."
            )
        field = next((each for each in fields if each.name == name), None)
        if field is None:
            kind = "fields" if before else "columns"
            raise UsageError(
                f"{option} names {'.'.join(path)!r}, which is not there.",
                remedy=suggest(name, [each.name for each in fields], kind),
            )
        before = name
        fields = list(field.type) if pa.types.is_struct(field.type) else []
    assert field is not None
    return field
