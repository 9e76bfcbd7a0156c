"""Plans from the files of two snapshots which rows of which files are removed and added. Pure.

A commit changes rows of three kinds of data files: those it adds (their live rows come), those it
removes (rows that were live before it go), and those it keeps while delete files of theirs come or
go. Delete files that apply before and after cancel out.

Specification: "Scan Planning", "Row-level Deletes"
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from tailerd.formats.iceberg.manifests import Content, ContentFile
from tailerd.rows.groups import FilesToCompare


@dataclass(frozen=True, slots=True)
class FileChange:
    """Rows of one data file that a commit removes or adds.

    Attributes:
        only: Rows that these delete files delete; None for all rows.
        without: Rows that these delete files delete are left out.
    """

    file: ContentFile
    only: tuple[ContentFile, ...] | None = None
    without: tuple[ContentFile, ...] = ()


@dataclass(frozen=True, slots=True)
class RowChanges:
    """The removed and added rows of a commit, by file."""

    removed: tuple[FileChange, ...] = ()
    added: tuple[FileChange, ...] = ()

    @property
    def has_vectors(self) -> bool:
        """Whether rows of kept files change."""
        return any(each.only is not None for each in (*self.removed, *self.added))


@dataclass(frozen=True, slots=True)
class CommitFiles:
    """The files that a commit adds and removes."""

    added: tuple[ContentFile, ...] = ()
    removed: tuple[ContentFile, ...] = ()

    def data(self, files: Sequence[ContentFile]) -> tuple[ContentFile, ...]:
        """Return the data files of one side."""
        return tuple(each for each in files if each.content is Content.DATA)

    def deletes(self, files: Sequence[ContentFile]) -> tuple[ContentFile, ...]:
        """Return the delete files of one side."""
        return tuple(each for each in files if each.content is not Content.DATA)


IsPartitioned = Callable[[int], bool]
"""Returns whether files of a partition spec have partition values."""


@dataclass(slots=True)
class DeleteIndex:
    """Delete files, indexed by the data files to which they may apply.

    Args:
        is_partitioned: Equality deletes of an unpartitioned spec apply to all files.
    """

    is_partitioned: IsPartitioned
    by_path: dict[str, list[ContentFile]] = field(default_factory=lambda: defaultdict(list))
    by_partition: dict[Hashable, list[ContentFile]] = field(
        default_factory=lambda: defaultdict(list)
    )
    everywhere: list[ContentFile] = field(default_factory=list)

    @classmethod
    def of(cls, files: Iterable[ContentFile], is_partitioned: IsPartitioned) -> DeleteIndex:
        """Return the index of delete files."""
        found = cls(is_partitioned)
        for file in files:
            if file.content is Content.EQUALITY_DELETES and not is_partitioned(file.spec_id):
                found.everywhere.append(file)
            elif file.data_file is not None and file.content is Content.POSITION_DELETES:
                found.by_path[file.data_file].append(file)
            else:
                found.by_partition[file.partition_key].append(file)
        return found

    @property
    def is_by_path(self) -> bool:
        """Whether each of them is of one known data file."""
        return not self.by_partition and not self.everywhere

    def find(self, file: ContentFile) -> list[ContentFile]:
        """Return the delete files that apply to a data file, in no particular order.

        Position deletes apply to files of the same commit and of earlier ones, equality deletes
        only to those of earlier ones.
        """
        found = [*self.everywhere, *self.by_path.get(file.path, ())]
        if self.by_partition:
            found += self.by_partition.get(file.partition_key, ())
        return [
            each
            for each in found
            if file.sequence < each.sequence + (each.content is not Content.EQUALITY_DELETES)
        ]


def live_rows(files: Iterable[ContentFile], deletes: DeleteIndex) -> tuple[FileChange, ...]:
    """Return the live rows of data files."""
    return tuple(FileChange(each, None, _sorted(deletes.find(each))) for each in files)


def row_changes(
    commit: CommitFiles,
    data_before: Iterable[ContentFile],
    deletes_before: Sequence[ContentFile],
    is_partitioned: IsPartitioned,
) -> RowChanges:
    """Return the rows that a commit removes and adds.

    Args:
        data_before: Data files before it; only needed if it adds or removes delete files.
        deletes_before: Delete files before it; only needed if it removes data files, adds or
            removes delete files, or adds data files with an earlier sequence number.
    """
    before = DeleteIndex.of(deletes_before, is_partitioned)
    gone_deletes = {each.key for each in commit.deletes(commit.removed)}
    kept = [each for each in deletes_before if each.key not in gone_deletes]
    new_deletes = commit.deletes(commit.added)
    after = DeleteIndex.of([*kept, *new_deletes], is_partitioned)
    changed = DeleteIndex.of([*new_deletes, *commit.deletes(commit.removed)], is_partitioned)
    removed = list(live_rows(commit.data(commit.removed), before))
    added = list(live_rows(commit.data(commit.added), after))
    gone = Counter(each.key for each in commit.data(commit.removed))
    for file in data_before if new_deletes or gone_deletes else ():
        if gone[file.key]:
            gone[file.key] -= 1
            continue
        if not changed.find(file):
            continue
        was = {each.key: each for each in before.find(file)}
        now = {each.key: each for each in after.find(file)}
        come = [each for key, each in now.items() if key not in was]
        left = [each for key, each in was.items() if key not in now]
        if come:
            removed.append(FileChange(file, _sorted(come), _sorted(was.values())))
        if left:
            added.append(FileChange(file, _sorted(left), _sorted(now.values())))
    return RowChanges(tuple(removed), tuple(added))


def _sorted(files: Iterable[ContentFile]) -> tuple[ContentFile, ...]:
    return tuple(sorted(files, key=lambda each: (each.sequence, each.path, each.offset or 0)))


def group_changes(changes: RowChanges) -> tuple[FilesToCompare, ...]:
    """Return which files are compared with which; together all are in one group.

    Files of one spec in different partitions share no row. Files of different specs may.
    """
    specs = {each.file.spec_id for each in (*changes.removed, *changes.added)}
    groups: dict[Hashable, tuple[list[int], list[int]]] = {}
    for side, files in enumerate((changes.removed, changes.added)):
        for number, each in enumerate(files):
            key = each.file.partition_key if len(specs) == 1 else ()
            groups.setdefault(key, ([], []))[side].append(number)
    return tuple(
        FilesToCompare(removed=tuple(removed), added=tuple(added))
        for removed, added in groups.values()
    )
