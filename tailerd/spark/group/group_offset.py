"""Offsets of a group as Spark keeps them: where each table stands, and what a batch moves.

A batch is a function of its end alone: the end says for each table it moves where that table's
rows begin, and the entry of the table where they end. So it does not matter what came before: a
table that joined, was reset or held back begins where the end says. Ends are numbered; a batch is
[end, from] of exactly one number. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from tailerd.changefeed.offset import Offset, Phase, Version
from tailerd.errors import OffsetError
from tailerd.spark.checkpoints import COMES_AGAIN

GroupFields = dict[str, object]

_FORMAT = 1
_AGAIN = f"Restart the group: remove its checkpoint, {COMES_AGAIN}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Where one table stands.

    Attributes:
        offset: The first thing not in any batch yet.
        generation: Which life of the table in this group it belongs to; another one begins again.
        moved: Number of the batch that moved it last.
        changes: The change mode it was planned with.
    """

    offset: Offset
    generation: int
    moved: int
    changes: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOffset:
    """The end of a batch.

    Attributes:
        number: Counts batches; 0 before the first.
        tables: All tables that ever were in the group.
        begins: Where the rows of each table begin that this batch moves.
    """

    number: int = 0
    tables: Mapping[str, Entry] = field(default_factory=dict)
    begins: Mapping[str, Offset] = field(default_factory=dict)

    def next(self, steps: Mapping[str, tuple[Offset, Entry]]) -> GroupOffset:
        """Return the end of the batch that moves these tables: name -> (begin, new entry)."""
        return GroupOffset(
            number=self.number + 1,
            tables={**self.tables, **{name: entry for name, (_, entry) in steps.items()}},
            begins={name: begin for name, (begin, _) in steps.items()},
        )

    def fields(self) -> GroupFields:
        """Return the stable form; the same offset has the same text."""
        return {
            "format": _FORMAT,
            "number": self.number,
            "tables": {
                name: [
                    entry.offset.table_id,
                    *_place(entry.offset),
                    entry.generation,
                    entry.moved,
                    entry.changes,
                ]
                for name, entry in self.tables.items()
            },
            "begins": {
                name: [begin.table_id, *_place(begin)] for name, begin in self.begins.items()
            },
        }

    @classmethod
    def from_json(cls, text: str) -> GroupOffset:
        """Read the JSON text of what `fields` gave.

        Raises:
            OffsetError: As `of`, or it is damaged.
        """
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError):
            fields = None
        if not isinstance(fields, dict):
            raise OffsetError(
                f"The offset of a group of tables is damaged: {text[:120]!r}.", remedy=_AGAIN
            )
        return cls.of(fields)

    @classmethod
    def of(cls, fields: Mapping[str, object]) -> GroupOffset:
        """Read what `fields` gave.

        Raises:
            OffsetError: It is no offset of a group, or a newer release wrote it.
        """
        if fields.get("format") != _FORMAT or "tables" not in fields:
            raise OffsetError(
                f"The checkpoint holds no offset of a group of tables: {str(dict(fields))[:120]}.",
                remedy="A newer tailerd may have written it: run that one.",
            )
        try:
            return cls(
                number=_whole(fields["number"]),
                tables={name: _entry(items) for name, items in _items(fields["tables"])},
                begins={name: _offset(items) for name, items in _items(fields["begins"])},
            )
        except (KeyError, TypeError, ValueError) as error:
            raise OffsetError(
                f"The offset of a group of tables is damaged: {error!r}.",
                remedy=_AGAIN,
            ) from error


def _place(offset: Offset) -> list[str | int]:
    return [offset.version, offset.phase.value, offset.position, offset.mark]


def _items(value: object) -> list[tuple[str, list[object]]]:
    if not isinstance(value, dict):
        raise TypeError(value)
    return list(value.items())


def _offset(items: list[object]) -> Offset:
    table_id, version, phase, position, mark = items
    return Offset(
        table_id=str(table_id),
        version=Version(_whole(version)),
        phase=Phase(str(phase)),
        position=_whole(position),
        mark=str(mark),
    )


def _entry(items: list[object]) -> Entry:
    *place, generation, moved, changes = items
    return Entry(
        offset=_offset(place),
        generation=_whole(generation),
        moved=_whole(moved),
        changes=str(changes),
    )


def _whole(value: object) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError(value)
    return value
