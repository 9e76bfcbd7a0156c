"""Log compaction: one file with the reconciled actions of a range of commits.

Lines are kept byte for byte. Every remove is kept, even an old one: the file it removes may have
been added before the range, and would otherwise become live again.

Protocol: PROTOCOL.md#log-compaction-files, #action-reconciliation
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tailerd.errors import CorruptLogError
from tailerd.formats.delta.protocol.actions import FileAction, Line
from tailerd.formats.delta.protocol.commit_file import Commit, decode_block, scan_commit
from tailerd.formats.delta.protocol.file_effects import find_repeated
from tailerd.formats.delta.protocol.file_key import file_key
from tailerd.formats.delta.protocol.snapshot import REMOVE_AND_ADD


def compact(bodies: Sequence[tuple[str, bytes]], root_url: str) -> bytes:
    """Return the compaction of a range of commits; empty if none of their actions is kept.

    Args:
        bodies: Name and body of each commit of the range, ascending.
        root_url: The table's location, to recognise absolute paths below it.

    Raises:
        CorruptLogError: A line is not an action, or a commit has two actions of one kind for a
            path.
    """
    others: dict[tuple[str, str], bytes] = {}
    files: dict[int, bytes] = {}
    for name, body in bodies:
        texts = [line for line in body.split(b"\n") if line.strip()]
        lines = decode_block(name, body)
        if find_repeated(scan_commit(0, name, body, root_url)) is not None:
            raise CorruptLogError(
                f"{name} has two actions of one kind for one file, which the protocol forbids.",
                remedy=REMOVE_AND_ADD,
            )
        adds = []
        for text, line in zip(texts, lines, strict=True):
            if line.add is not None:
                adds.append((_key(line.add, root_url), text))
            elif line.remove is not None:
                _put(files, _key(line.remove, root_url), text)
            elif (identity := _identity(line)) is not None:
                others[identity] = text
        # The order within a commit has no meaning; a file that is removed and added is live.
        for key, text in adds:
            _put(files, key, text)
    return b"".join(text + b"\n" for text in (*others.values(), *files.values()))


def _put(files: dict[int, bytes], key: int, text: bytes) -> None:
    files.pop(key, None)
    files[key] = text


def _key(action: FileAction, root_url: str) -> int:
    vector = action.deletion_vector
    return file_key(action.path, None if vector is None else vector.unique_id, root_url)


def _identity(line: Line) -> tuple[str, str] | None:
    """Return the identity of a non-file action; it replaces earlier ones with the same identity."""
    if line.txn is not None:
        return "txn", line.txn.app_id
    if line.domain_metadata is not None:
        return "domainMetadata", line.domain_metadata.domain
    if line.meta_data is not None:
        return "metaData", ""
    return None if line.protocol is None else ("protocol", "")


@dataclass(slots=True)
class _Sum:
    """The reconciled state of commits, computed independently of `compact`."""

    files: dict[int, int | None]
    others: dict[tuple[str, str], object]

    def take(self, commit: Commit) -> None:
        for key in commit.removed_keys:
            self.files[key] = None
        self.files.update(zip(commit.added_keys, commit.added_sizes, strict=True))
        self.others |= {("txn", action.app_id): action for action in commit.transactions}
        self.others |= {("domain", action.domain): action for action in commit.domain_metadata}
        if commit.metadata is not None:
            self.others["metaData", ""] = commit.metadata
        if commit.protocol is not None:
            self.others["protocol", ""] = commit.protocol


def matches_commits(body: bytes, commits: Sequence[tuple[str, bytes]], root_url: str) -> bool:
    """Return whether a compaction is equivalent to its commits, by replaying both.

    Raises:
        CorruptLogError: A body is damaged.
    """
    sums = (_Sum({}, {}), _Sum({}, {}))
    sums[0].take(scan_commit(0, "the compaction", body, root_url))
    for name, commit in commits:
        sums[1].take(scan_commit(0, name, commit, root_url))
    return sums[0] == sums[1]
