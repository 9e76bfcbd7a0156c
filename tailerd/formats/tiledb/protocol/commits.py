"""Determines the commits of an array from the names in `__commits` and in its top folder. Pure.

Format specification: commits, consolidated_commits_file.md, ignore_file.md, vacuum_file.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from tailerd.errors import CorruptLogError, UnsupportedFeatureError
from tailerd.formats.tiledb.protocol.names import (
    CommitKind,
    TimedName,
    commit_file,
    last_part,
    timed_name,
)

_WRITES = (CommitKind.WRITE, CommitKind.OLD_WRITE)
_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True)
class DeleteRecord:
    """Where the condition of a delete is: a file, and a byte range (None: to its end)."""

    file: str
    start: int = 0
    length: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsolidatedFile:
    """The content of a `.con` file: names of commit files; for deletes, also their conditions."""

    writes: tuple[str, ...]
    deletes: tuple[tuple[str, DeleteRecord], ...]


def read_consolidated(content: bytes, file: str) -> ConsolidatedFile:
    """Parse a `.con` file: a line for each commit; for a delete followed by length and condition.

    Args:
        file: Its name, for errors and for the positions of conditions.

    Raises:
        CorruptLogError: It is truncated, or lists a file that is not a commit.
        UnsupportedFeatureError: It lists an update.
    """
    writes, deletes, at = [], [], 0
    while at < len(content):
        end = content.find(b"\n", at)
        name = last_part(content[at : max(end, at)].decode("utf-8", "replace"))
        known = commit_file(name)
        if end < 0 or known is None:
            raise CorruptLogError(
                f"The consolidated commits file {file} has no commit's name at byte {at}.",
                remedy="Restore it from a backup of the array.",
                path=file,
            )
        at = end + 1
        if known[1] in _WRITES:
            writes.append(name)
            continue
        if known[1] is not CommitKind.DELETE:
            raise refused_update(f"{file} ({name})")
        length = int.from_bytes(content[at : at + _LENGTH_BYTES], "little")
        at += _LENGTH_BYTES
        if at + length > len(content):
            raise CorruptLogError(f"The condition of {name} in {file} is cut off.", path=file)
        deletes.append((name, DeleteRecord(file, at, length)))
        at += length
    return ConsolidatedFile(writes=tuple(writes), deletes=tuple(deletes))


def refused_update(file: str) -> UnsupportedFeatureError:
    """Return the error for a commit of updated cells."""
    return UnsupportedFeatureError(
        f"The commit {file} is an update by condition, which this release cannot read.",
        remedy="Write the cells again instead, and remove the update with TileDB.",
        path=file,
    )


def read_lines(content: bytes) -> tuple[str, ...]:
    """Return the names in a `.vac` or `.ign` file, without their folders."""
    lines = content.decode("utf-8", "replace").splitlines()
    return tuple(last_part(line) for line in lines if line)


@dataclass(frozen=True, slots=True, kw_only=True)
class Commits:
    """All commits, independent of a reader's time.

    Attributes:
        fragments: Written cells, by name, including merged ones.
        deletes: Conditions that delete cells, and where each is.
        to_vacuum: Merged fragment -> the names of its originals, while these may still exist.
    """

    fragments: frozenset[TimedName]
    deletes: Mapping[TimedName, DeleteRecord] = field(default_factory=dict)
    to_vacuum: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @property
    def names(self) -> frozenset[str]:
        """Names of all fragments and deletes."""
        return frozenset(each.text for each in (*self.fragments, *self.deletes))

    @property
    def replacing(self) -> frozenset[TimedName]:
        """Merged fragments in use: at least one of their originals is missing."""
        there = {each.text for each in self.fragments}
        return frozenset(
            each
            for each in self.fragments
            if each.is_merged and not self.to_vacuum.get(each.text, frozenset({""})) <= there
        )

    def select_used(self) -> frozenset[TimedName]:
        """Return the fragments in use: a merged fragment or its originals, never both."""
        replacing = self.replacing
        gone = {name for each in replacing for name in self.to_vacuum.get(each.text, ())}
        return frozenset(
            each
            for each in self.fragments
            if each.text not in gone and (not each.is_merged or each in replacing)
        )


def find_commits(
    files: Iterable[str],
    *,
    consolidated: Iterable[ConsolidatedFile] = (),
    ignored: Collection[str] = (),
    to_vacuum: Mapping[str, Iterable[str]] | None = None,
    fragments: Iterable[str] = (),
) -> Commits:
    """Return the commits of an array.

    Args:
        files: Names of the files in `__commits`, and of commit files in the top folder.
        consolidated: Content of its `.con` files.
        ignored: Names in its `.ign` files, which are ignored in `.con` files.
        to_vacuum: Merged fragment -> names in its `.vac` file.
        fragments: Names of fragments that are committed without a commit file (before format 5).

    Raises:
        UnsupportedFeatureError: There is an update by condition.
    """
    found: set[TimedName] = {name for text in fragments if (name := timed_name(text)) is not None}
    deletes: dict[TimedName, DeleteRecord] = {}
    for text in files:
        known = commit_file(text)
        if known is None:
            continue
        name, kind = known
        if kind in _WRITES:
            found.add(name)
        elif kind is CommitKind.DELETE:
            deletes[name] = DeleteRecord(text)
        elif kind is CommitKind.UPDATE:
            raise refused_update(text)
    for each in consolidated:
        found.update(name for text in each.writes if text not in ignored for name in _stem(text))
        for text, record in each.deletes:
            if text not in ignored:
                for name in _stem(text):
                    deletes.setdefault(name, record)
    vacuums = {name: frozenset(map(last_part, old)) for name, old in (to_vacuum or {}).items()}
    return Commits(fragments=frozenset(found), deletes=deletes, to_vacuum=vacuums)


def _stem(text: str) -> Iterable[TimedName]:
    known = commit_file(text)
    return () if known is None else (known[0],)
