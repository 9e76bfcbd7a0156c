"""Copies of local tables in a bucket."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.clouds.buckets import BucketServer


def upload(server: BucketServer, folder: Path, bucket: str, prefix: str = "") -> int:
    """Copy every file below a folder to `bucket/prefix`; return how many there were.

    The server dates them now, in the order of their own times: what commits are dated by stays
    in order.
    """
    files = sorted((path for path in folder.rglob("*") if path.is_file()), key=_modified)

    def put(path: Path) -> None:
        key = "/".join(part for part in (prefix, path.relative_to(folder).as_posix()) if part)
        server.put(bucket, key, path.read_bytes())

    log = [path for path in files if "_delta_log" in path.parts]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(put, (path for path in files if path not in set(log))))
    for path in log:
        put(path)
    return len(files)


def _modified(path: Path) -> tuple[int, str]:
    return path.stat().st_mtime_ns, path.name
