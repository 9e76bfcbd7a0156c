"""Read back the files in a file sink's folder."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import BinaryIO

from tailerd.errors import SinkError

CHUNK_BYTES = 1 << 20


async def read_lines(folder: Path) -> AsyncGenerator[Sequence[bytes]]:
    """Yield the lines of all JSON-lines files of a folder, in the order of the file names.

    Raises:
        SinkError: The folder or a file cannot be read, or there are Parquet files.
    """
    try:
        for path in await asyncio.to_thread(_files, folder):
            with path.open("rb") as file:
                while lines := await asyncio.to_thread(_next_lines, file):
                    yield lines
    except OSError as error:
        raise SinkError(f"The sink folder {folder} cannot be read: {error.strerror}.") from error


def _files(folder: Path) -> list[Path]:
    files = [path for path in sorted(folder.iterdir()) if not path.name.startswith(".")]
    if any(path.suffix == ".parquet" for path in files):
        raise SinkError(
            f"The sink folder {folder} holds Parquet files, and only JSON lines can be read back.",
            remedy="Query them with any Parquet reader.",
        )
    return [path for path in files if path.suffix == ".jsonl"]


def _next_lines(file: BinaryIO) -> list[bytes]:
    return file.readlines(CHUNK_BYTES)
