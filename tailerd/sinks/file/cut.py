"""Remove the rows at or after an offset from the files of a delivery.

Rows ascend by version through a delivery's files, and each has its `_commit_version`. So at most
one file is kept in part: its first rows are written to a temporary file, durably, which then
replaces it atomically. After a crash, a repeated call continues.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tailerd.changefeed.change_batch import COMMIT_TIMESTAMP, COMMIT_VERSION
from tailerd.errors import ConfigError, OffsetError
from tailerd.sinks.file.delivery_files import NET
from tailerd.sinks.file.owner import FolderOwner
from tailerd.sinks.file.parts import close_durably, open_temporary
from tailerd.sinks.parquet_writer import open_writer

_LINE_END = re.compile(
    rf'"{COMMIT_VERSION}":(\d+),"{COMMIT_TIMESTAMP}":"[^"]*"\}}\n'.encode(),
)
_LINE_END_BYTES = 256
_CHUNK_BYTES = 1024 * 1024


def cut_rows(parts: Sequence[Path], until_version: int, owner: FolderOwner) -> None:
    """Remove the rows of versions at or after `until_version` from the files of one delivery.

    Blocking; raises `OSError`. Holds one line, or one row group, in memory.

    Args:
        parts: The delivery's files, in order.
        until_version: The first version to remove.
        owner: Owner of the folder.

    Raises:
        OffsetError: The files are one difference over several commits.
        ConfigError: A file was changed after it was written.
    """
    check_cut(parts, until_version)
    for part in reversed(parts):
        with _reporting_damage(part, until_version):
            if _last_version(part) < until_version:
                return
            _cut(part, until_version, owner)


def check_cut(parts: Sequence[Path], until_version: int) -> None:
    """Check that the files of a delivery can be cut; blocking, raises `OSError`.

    The rows of a difference over several commits all have its last version, so they cannot be
    told apart.

    Args:
        parts, until_version: As in `cut_rows`.

    Raises:
        OffsetError: They would have to be cut inside a difference over several commits.
        ConfigError: A file was changed after it was written.
    """
    if not parts or NET not in parts[-1].name:
        return
    first = int(parts[0].name.split("-")[0])
    with _reporting_damage(parts[-1], until_version):
        newest = _last_version(parts[-1])
    if newest >= until_version:
        raise OffsetError(
            f"Version {until_version} is inside {parts[-1].name}, which has the versions from"
            f" {first} to {newest} as one difference, so its rows cannot be cut there.",
            remedy=f"Reset to {first} to deliver these versions again, or to a version after"
            f" {newest}.",
        )


@contextmanager
def _reporting_damage(part: Path, until_version: int) -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, pa.ArrowException) as error:
        raise ConfigError(
            f"{part} is damaged or was changed, so it is unknown which of its rows come before"
            f" version {until_version}: {error}.",
            remedy="Restore the file, or move it out of the folder.",
        ) from error


def _last_version(path: Path) -> int:
    if path.suffix == ".parquet":
        with pq.ParquetFile(path) as file:
            groups = file.metadata.num_row_groups
            versions = file.read_row_group(groups - 1, columns=[COMMIT_VERSION])
            return int(pc.max(versions[COMMIT_VERSION]).as_py())
    with path.open("rb") as lines:
        size = lines.seek(0, os.SEEK_END)
        lines.seek(max(0, size - _LINE_END_BYTES))
        return _parse_version(lines.read())


def _parse_version(line: bytes) -> int:
    """Return the version from the end of a line, a pattern that no column value can produce."""
    ends = list(_LINE_END.finditer(line))
    if not ends or ends[-1].end() != len(line):
        raise ValueError(f"a line does not end with {COMMIT_VERSION} and {COMMIT_TIMESTAMP}")
    return int(ends[-1][1])


def _cut(path: Path, until_version: int, owner: FolderOwner) -> None:
    # The new file has the permissions of the old one.
    with open_temporary(owner.temporary(path), stat.S_IMODE(path.stat().st_mode)) as target:
        is_parquet = path.suffix == ".parquet"
        has_rows = (_keep_groups if is_parquet else _keep_lines)(path, target, until_version)
        if has_rows:
            close_durably(target)
    if has_rows:
        owner.publish(path)
    else:
        owner.check()
        path.unlink()
        owner.temporary(path).unlink()


def _keep_lines(path: Path, target: BinaryIO, until_version: int) -> bool:
    with path.open("rb", buffering=_CHUNK_BYTES) as lines:
        for line in lines:
            if _parse_version(line[-_LINE_END_BYTES:]) >= until_version:
                break
            target.write(line)
    return target.tell() > 0


def _keep_groups(path: Path, target: BinaryIO, until_version: int) -> bool:
    with pq.ParquetFile(path) as file:
        groups = _groups_before(file, until_version)
        first = next(groups, None)
        if first is None:
            return False
        with open_writer(target, first, compression="zstd") as writer:
            writer.write_table(first)
            for group in groups:
                writer.write_table(group)
    return True


def _groups_before(file: pq.ParquetFile, until_version: int) -> Iterator[pa.Table]:
    """Yield row groups up to the first row at or after a version; none is empty."""
    for number in range(file.metadata.num_row_groups):
        group = file.read_row_group(number)
        kept = group.filter(pc.less(group[COMMIT_VERSION], until_version))
        if kept.num_rows:
            yield kept
        if kept.num_rows < group.num_rows:
            return
