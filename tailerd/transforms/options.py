"""Builds a view from the words that a configuration, a command, Python and Spark share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypedDict

from tailerd.errors import UsageError
from tailerd.transforms.columns import Path, naming_option, parse_path
from tailerd.transforms.mask import Mask, MaskKind
from tailerd.transforms.view import View

MASK_KEY = "TAILERD_MASK_KEY"
"""The environment's variable for the secret of `hash`."""
VIEW_OPTIONS = ("columns", "rename", "where", "mask", "unchanged")
UNCHANGED = ("keep", "drop")


class ViewOptions(TypedDict, total=False):
    """Which columns, rows and values of a table are delivered.

    Attributes:
        columns: Only these columns and fields (`a.b`), in this order, or all but those of
            `{"exclude": [...]}`; None for all.
        rename: New names by column or field.
        where: The condition that rows meet, in SQL. An update whose row enters the condition is an
            insert, and one whose row leaves it a delete.
        mask: By column or field: `hash`, `redact`, `null`, `partial` (the last 4 characters), or
            `{"truncate": unit}` for dates, times and numbers.
        mask_key: Secret of `hash`; by default the variable TAILERD_MASK_KEY.
        unchanged: `drop` leaves out updates that change nothing that is delivered.
    """

    columns: str | Sequence[str] | Mapping[str, Sequence[str]] | None
    rename: Mapping[str, str] | None
    where: str | None
    mask: Mapping[str, Any] | None
    mask_key: str | None
    unchanged: Literal["keep", "drop"]


def make_view(
    *,
    columns: str | Sequence[str] | Mapping[Any, Any] | None = None,
    rename: Mapping[str, str] | None = None,
    where: str | None = None,
    mask: Mapping[str, Any] | None = None,
    mask_key: str | None = None,
    unchanged: str = "keep",
    key: Sequence[str] = (),
    extra: Sequence[str] = (),
) -> View | None:
    """Return the view that the options describe; None if they change nothing.

    Args:
        columns: What is delivered, in this order; or `{"exclude": [...]}`; None for everything.
        rename: New names by column or field.
        where: The condition that rows meet.
        mask: By column or field: `hash`, `redact`, `null`, `partial` or `{"truncate": unit}`.
        mask_key: Secret of `hash`.
        unchanged: `drop` leaves out updates that change nothing that is delivered.
        key: Columns that identify a row, as the feed names them.
        extra: Columns from which keys, topics and partitions are made.

    Raises:
        UsageError: An option has no such form.
    """
    if unchanged not in UNCHANGED:
        raise UsageError(f"unchanged is {unchanged!r}.", remedy="Write keep or drop.")
    with naming_option("columns"):
        include, exclude = _read_columns(columns)
    with naming_option("rename"):
        names = tuple((parse_path(path), _name(name)) for path, name in (rename or {}).items())
    predicate = None
    if where is not None:
        # Imports the parser of SQL, which takes longer than the rest of a command.
        from tailerd.transforms.where import parse_predicate

        with naming_option("where"):
            predicate = parse_predicate(where)
    with naming_option("mask"):
        masks = tuple((parse_path(path), _mask(path, each)) for path, each in (mask or {}).items())
    view = View(
        include=include,
        exclude=exclude,
        rename=names,
        where=predicate,
        masks=masks,
        mask_key=(mask_key or "").encode(),
        drops_unchanged=unchanged == "drop",
        key=tuple(key),
        extra=tuple(extra),
    )
    is_plain = (include, exclude, view.rename, view.where, view.masks) == (None, (), (), None, ())
    return None if is_plain and not view.drops_unchanged else view


def _read_columns(columns: object) -> tuple[tuple[Path, ...] | None, tuple[Path, ...]]:
    if columns is None:
        return None, ()
    if isinstance(columns, Mapping):
        if set(columns) - {"include", "exclude"} or len(columns) != 1:
            raise UsageError(
                "columns has one of the two words `include` and `exclude`.",
                remedy="Write columns: [a, b] or columns: {exclude: [c]}.",
            )
        include, exclude = columns.get("include"), columns.get("exclude")
        if include is None:
            return None, _paths(exclude)
        return _paths(include), ()
    return _paths(columns), ()


def _paths(names: object) -> tuple[Path, ...]:
    if isinstance(names, str):
        names = [names]
    if not isinstance(names, Iterable):
        raise UsageError(f"columns is {names!r}.", remedy="Write columns: [a, b].")
    found = [str(name) for name in names]
    if twice := [name for name in found if found.count(name) > 1]:
        raise UsageError(f"columns names {twice[0]!r} twice.", remedy="Name each column once.")
    return tuple(map(parse_path, found))


def _name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise UsageError("A new name of a column is empty.", remedy="Write rename: {old: new}.")
    return name


def _mask(column: str, given: object) -> Mask:
    if isinstance(given, Mapping) and list(given) == [MaskKind.TRUNCATE.value]:
        return Mask(kind=MaskKind.TRUNCATE, unit=str(given[MaskKind.TRUNCATE.value]))
    if given is None:
        # In YAML the word `null` is no text.
        return Mask(kind=MaskKind.NULL)
    word, _, unit = str(given).partition(":")
    kinds = [kind.value for kind in MaskKind]
    if word not in kinds or bool(unit) != (word == MaskKind.TRUNCATE):
        raise UsageError(
            f"The mask of {column!r} is {given!r}.",
            remedy="Write hash, redact, null, partial, or {truncate: year}.",
        )
    return Mask(kind=MaskKind(word), unit=unit)


def parse_pairs(text: str, option: str) -> dict[str, str]:
    """Return the pairs of `a=b,c=d`.

    Raises:
        UsageError: A part has another form, or names a column again.
    """
    found: dict[str, str] = {}
    for part in text.split(","):
        name, is_pair, value = (each.strip() for each in part.partition("="))
        if not (name and is_pair and value) or name in found:
            raise UsageError(
                f"{option} {text!r} is not a list of pairs.",
                remedy=f"Write {option} a=x,b=y, each column once.",
            )
        found[name] = value
    return found
