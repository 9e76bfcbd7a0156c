"""A reader's position in a table: everything before an offset is delivered, nothing after."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass, replace
from typing import NewType, Protocol, Self

from tailerd.errors import OffsetError
from tailerd.remedies import RESET_PIPELINE, RESTART

Version = NewType("Version", int)
"""A version of a table, not below 0. The source defines which version follows: `Versions`."""

BEFORE_ALL = Version(-1)
"""Placeholder for the version before a table's first."""

FORMAT = 1
FILE_KEYS = 1 << 64
"""Number of keys that files of a snapshot may have."""
MAX_MARK_CHARS = 1024


class Versions(Protocol):
    """Defines which versions of a table follow each other. No other code does version arithmetic.

    Both methods accept any number, even one that is not a version of the table. Neither makes a
    request.
    """

    def version_before(self, version: Version) -> Version:
        """Return the last version below `version`; `BEFORE_ALL` if there is none."""
        ...

    def next_version(self, version: Version) -> Version:
        """Return the first version above `version`, which may not exist yet."""
        ...


class ConsecutiveVersions:
    """Versions 0, 1, 2, ...: the rule of formats that number their commits."""

    def version_before(self, version: Version) -> Version:
        """Return the last version before `version`; `BEFORE_ALL` before the first."""
        return Version(max(version - 1, BEFORE_ALL))

    def next_version(self, version: Version) -> Version:
        """Return the version after `version`."""
        return Version(version + 1)


class Phase(enum.StrEnum):
    """Which part of the delivery loop an offset belongs to."""

    SNAPSHOT = "snapshot"
    FOLLOW = "follow"


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """The first item not yet delivered. Beware of off-by-one errors: it points *at* work.

    Attributes:
        table_id: Identity (`metaData.id`) the table had in `last_version`. A table replaced by
            `CREATE OR REPLACE TABLE` gets another one within its log, so offsets of one log may
            differ in it: `ChangeSource` checks whether an offset is of its log.
        version: The version whose rows come next.
        phase: `snapshot` while the rows of `version` itself are emitted as inserts; `follow` once
            commits are. The snapshot of V is before the commit V + 1.
        position: In `follow`, the first change task of the commit not yet delivered, counted
            among all its tasks before any filter; 0 at a commit's start. In `snapshot`, the
            smallest file key (unsigned 64 bit) not yet delivered: snapshot files are delivered in
            the order of their keys, which does not depend on the layout of the log.
        mark: State that the source saves with the offset, opaque to others; short, mostly empty.
    """

    table_id: str
    version: Version
    phase: Phase = Phase.FOLLOW
    position: int = 0
    mark: str = ""

    @property
    def order(self) -> tuple[int, int, int]:
        """Sort key within one log."""
        return (self.version, 0 if self.phase is Phase.SNAPSHOT else 1, self.position)

    @property
    def is_commit_start(self) -> bool:
        """Whether no row of `version`'s commit is delivered yet."""
        return self.phase is Phase.FOLLOW and self.position == 0

    def last_version(self, versions: Versions) -> Version:
        """Return the last version delivered in full or in part; `BEFORE_ALL` if there is none."""
        return versions.version_before(self.version) if self.is_commit_start else self.version

    def is_before(self, other: Offset) -> bool:
        """Return whether this offset comes before `other`, which must be of the same log."""
        return self.order < other.order

    def at(self, position: int) -> Self:
        """Return this offset at another position of the same version and phase."""
        return replace(self, position=position)

    def after_version(self, versions: Versions) -> Offset:
        """Return the start of the next version's commit."""
        return Offset(table_id=self.table_id, version=versions.next_version(self.version))

    def snapshot_share(self) -> float | None:
        """Return the delivered share of a snapshot, 0 to 1; None if it is not in a snapshot.

        Files are delivered in the order of their keys, which are spread evenly.
        """
        return self.position / FILE_KEYS if self.phase is Phase.SNAPSHOT else None

    def to_json(self) -> str:
        """Return the stable text form, one line."""
        fields: dict[str, object] = {
            "format": FORMAT,
            "table_id": self.table_id,
            "version": self.version,
            "phase": self.phase.value,
            "position": self.position,
        }
        if self.mark:
            fields["mark"] = self.mark
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Offset:
        """Read what `to_json` wrote.

        Raises:
            OffsetError: The text is not an offset, or a newer release wrote it.
        """
        try:
            fields = json.loads(text)
            if fields["format"] != FORMAT:
                raise OffsetError(
                    f"The offset has format {fields['format']!r}, this release reads format"
                    f" {FORMAT}, because a newer tailerd wrote it.",
                    remedy=f"Run the newer release, or {RESTART}.",
                )
            offset = cls(
                table_id=str(fields["table_id"]),
                version=Version(int(fields["version"])),
                phase=Phase(fields["phase"]),
                position=int(fields["position"]),
                mark=str(fields.get("mark", "")),
            )
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise OffsetError(
                f"The offset {text[:120]!r} cannot be read: {error!r}.",
                remedy=RESET_PIPELINE,
            ) from error
        if offset.version < 0 or offset.position < 0:
            raise OffsetError(f"The offset {text[:120]!r} counts below zero.")
        if len(offset.mark) > MAX_MARK_CHARS:
            raise OffsetError(
                f"The mark of the offset {text[:120]!r} has more than {MAX_MARK_CHARS} characters."
            )
        return offset


def first_commit(offset: Offset) -> int:
    """Return the first commit at or after an offset; after a snapshot it is the next version.

    For tables whose versions are consecutive.
    """
    return offset.version + (offset.phase is Phase.SNAPSHOT)


def whole_before(versions: Versions, offset: Offset) -> Version | None:
    """Return the newest version that is entirely before an offset; None if there is none."""
    before = versions.version_before(offset.version)
    return None if before == BEFORE_ALL else before


def is_past(offset: Offset, target: Version | None) -> bool:
    """Return whether everything up to the target is before an offset; False without a target."""
    return target is not None and offset.phase is Phase.FOLLOW and offset.version > target


def clip_end(end: Offset, target: Version | None, versions: Versions) -> Offset:
    """Return the end of a delivery, limited to the target."""
    if target is None or not is_past(end, target):
        return end
    return replace(end, version=versions.next_version(target), phase=Phase.FOLLOW, position=0)
