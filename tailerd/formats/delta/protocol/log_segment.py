"""Chooses the files of a log that rebuild a version. A `LogSegment` is always complete.

Protocol: PROTOCOL.md#checkpoints, #action-reconciliation, #log-compaction-files
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tailerd.errors import MissingVersionError, NotATableError
from tailerd.formats.delta.protocol.log_path import CHECKPOINT_KINDS, LogFile, LogFileKind


@dataclass(frozen=True, slots=True, kw_only=True)
class LogListing:
    """The classified files of one listing of the log.

    Attributes:
        commits: By version.
        checkpoints: Complete ones by version, each a tuple of its parts; preferred ones first.
        compactions: In listing order.
        checksum_versions: Versions with a `.crc` file.
    """

    commits: dict[int, LogFile]
    checkpoints: dict[int, list[tuple[LogFile, ...]]]
    compactions: tuple[LogFile, ...]
    checksum_versions: frozenset[int]

    @classmethod
    def classify(cls, files: Iterable[LogFile]) -> LogListing:
        """Classify the files of a listing; drop incomplete multi-part checkpoints."""
        commits: dict[int, LogFile] = {}
        single: dict[int, list[tuple[LogFile, ...]]] = defaultdict(list)
        multi: dict[tuple[int, int], list[LogFile]] = defaultdict(list)
        compactions: list[LogFile] = []
        checksums: set[int] = set()
        for file in files:
            match file.kind:
                case LogFileKind.COMMIT:
                    commits[file.version] = file
                case LogFileKind.COMPACTION:
                    compactions.append(file)
                case LogFileKind.CHECKSUM:
                    checksums.add(file.version)
                case LogFileKind.MULTI_PART_CHECKPOINT:
                    multi[file.version, file.parts].append(file)
                case _ if file.kind in CHECKPOINT_KINDS and file.size_bytes > 0:
                    single[file.version].append((file,))
                case _:
                    pass
        for (version, parts), found in multi.items():
            if len({file.part for file in found}) == parts:
                single[version].append(tuple(sorted(found, key=lambda file: file.part)))
        for candidates in single.values():
            # V2 checkpoints first, then single files, then multi-part: newer forms are better.
            candidates.sort(key=lambda c: (c[0].kind is not LogFileKind.UUID_CHECKPOINT, len(c)))
        return cls(
            commits=commits,
            checkpoints=dict(single),
            compactions=tuple(compactions),
            checksum_versions=frozenset(checksums),
        )

    @property
    def head_version(self) -> int | None:
        """The newest version with any file; None for an empty log."""
        compacted = (file.end_version for file in self.compactions)
        newest = [*self.commits, *self.checkpoints, *compacted]
        return max(newest) if newest else None

    @property
    def earliest_commit(self) -> int | None:
        """The oldest commit that still exists."""
        return min(self.commits) if self.commits else None

    def gap(self, version: int | None = None, excluded: frozenset[str] = frozenset()) -> int | None:
        """Return the first missing commit needed for a version (None: the newest).

        None if none is missing, or if cleanup removed needed commits: for an older version, or
        because a checkpoint is damaged. If only the first commit is missing, it may be listed late.

        Args:
            excluded: As `LogSegment.for_version`.
        """
        head = self.head_version
        if head is None or (version is not None and version > head):
            return None
        target = head if version is None else version
        checkpoint = _newest_checkpoint(self, target, excluded)
        after = checkpoint[0].version if checkpoint else -1
        _, lacking = _chain(self, after, target, excluded)
        earliest = self.earliest_commit or 0
        is_cut_off = not checkpoint and lacking is not None and lacking < earliest
        is_older = version is not None and earliest > 1
        return None if is_cut_off and (excluded or is_older) else lacking


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSegment:
    """The files that rebuild `version`.

    Invariants: `ascending_commits` are the versions after the checkpoint (or from 0) up to
    `version`, without a gap; an entry may be a compaction that replaces its range; the checkpoint
    has all its parts and is not newer than `version`.
    """

    version: int
    checkpoint: tuple[LogFile, ...]
    ascending_commits: tuple[LogFile, ...]
    checksum_version: int | None = None

    @property
    def checkpoint_version(self) -> int | None:
        """Version of the checkpoint; None without one."""
        return self.checkpoint[0].version if self.checkpoint else None

    @property
    def compactions(self) -> tuple[LogFile, ...]:
        """Entries that replace a range of commits."""
        return tuple(f for f in self.ascending_commits if f.kind is LogFileKind.COMPACTION)

    @classmethod
    def for_version(
        cls,
        listing: LogListing,
        version: int | None = None,
        *,
        location: str = "this location",
        excluded: frozenset[str] = frozenset(),
    ) -> LogSegment:
        """Choose the files for `version` (None: the newest).

        Args:
            location: The table's, for error messages.
            excluded: Names of damaged checkpoint or compaction files, which are skipped.

        Raises:
            NotATableError: The log has no commit, no checkpoint and no compaction.
            MissingVersionError: Files that are needed are missing; the message names them.
        """
        head = listing.head_version
        if head is None:
            raise NotATableError(
                f"There is no Delta table at {location}: its log holds no commit and no"
                " checkpoint.",
                remedy="Check the path; it is the folder that contains _delta_log.",
            )
        target = head if version is None else version
        if target > head:
            raise MissingVersionError(
                f"Version {target} does not exist yet: the newest is {head}.",
                remedy=f"Ask for a version up to {head}, or wait for the writer.",
            )
        checkpoint = _newest_checkpoint(listing, target, excluded)
        after = checkpoint[0].version if checkpoint else -1
        commits = _commits(listing, after, target, excluded)
        newest_checksum = target if target in listing.checksum_versions else None
        return cls(
            version=target,
            checkpoint=checkpoint,
            ascending_commits=commits,
            checksum_version=newest_checksum,
        )


def _newest_checkpoint(
    listing: LogListing, target: int, excluded: frozenset[str]
) -> tuple[LogFile, ...]:
    for version in sorted(listing.checkpoints, reverse=True):
        if version > target:
            continue
        for candidate in listing.checkpoints[version]:
            if not any(file.name in excluded for file in candidate):
                return candidate
    return ()


def _commits(
    listing: LogListing, after: int, target: int, excluded: frozenset[str]
) -> tuple[LogFile, ...]:
    chosen, lacking = _chain(listing, after, target, excluded)
    if lacking is not None:
        raise _missing(listing, after, lacking, target)
    return tuple(chosen)


def _chain(
    listing: LogListing, after: int, target: int, excluded: frozenset[str]
) -> tuple[list[LogFile], int | None]:
    """Return consecutive files from `after` on, and the first missing version up to `target`."""
    chosen: list[LogFile] = []
    version = after + 1
    while version <= target:
        file = listing.commits.get(version)
        if file is None:
            # A compaction is used only if its commits are missing: some writers' compactions lose
            # removes.
            file = _compaction_from(listing.compactions, version, target, excluded)
        if file is None:
            return chosen, version
        chosen.append(file)
        version = file.end_version + 1
    return chosen, None


def commits_between(
    listing: LogListing, after: int, target: int, compactions: Sequence[LogFile] = ()
) -> tuple[LogFile, ...]:
    """Return the commits after one version up to another.

    Args:
        compactions: Used instead of their commits, even if these exist again.

    Raises:
        MissingVersionError: One is missing.
    """
    replaced = {
        version for file in compactions for version in range(file.version, file.end_version + 1)
    }
    commits = {v: file for v, file in listing.commits.items() if v not in replaced}
    return _commits(replace(listing, commits=commits), after, target, frozenset())


def _compaction_from(
    compactions: Sequence[LogFile], version: int, target: int, excluded: frozenset[str]
) -> LogFile | None:
    fitting = [
        file
        for file in compactions
        if file.version == version and file.end_version <= target and file.name not in excluded
    ]
    return max(fitting, key=lambda file: file.end_version, default=None)


def _missing(listing: LogListing, after: int, version: int, target: int) -> MissingVersionError:
    earliest = listing.earliest_commit
    checkpoints = sorted(listing.checkpoints)
    if after < 0 and earliest is not None and version < earliest:
        kept = f"the oldest commit is {earliest}"
        if checkpoints:
            kept += f" and the oldest checkpoint {checkpoints[0]}"
        return MissingVersionError(
            f"Version {target} cannot be rebuilt: {kept}, because the log before was cleaned up"
            " or its checkpoint is damaged.",
            remedy=(
                f"Ask for version {checkpoints[0]} or later."
                if checkpoints and checkpoints[0] > target
                else "Restore the missing log entries from a backup."
            ),
        )
    return MissingVersionError(
        f"Version {version} is missing from the log, though version {target} is there.",
        remedy="A gap means lost commits: restore the file from a backup; nothing is skipped.",
    )
