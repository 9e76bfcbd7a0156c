"""GET an object: with `quick_gets` if it has learned the bucket, else with the vendor's client."""

from __future__ import annotations

import calendar
from datetime import datetime
from email.utils import parsedate
from http import HTTPStatus
from typing import Any, cast

from tailerd.errors import StorageError
from tailerd.storage.base import FileMeta
from tailerd.storage.remote_input import Fetched
from tailerd.storage.s3.connection import S3Client
from tailerd.storage.s3.connection_pool import Answer
from tailerd.storage.s3.quick_gets import noting


async def get_object(
    client: S3Client, path: str, span: str = "", etag: str = "", into: memoryview | None = None
) -> Fetched:
    """Get a file, or the range `span` of it; with an etag, only if the file still has it.

    The body is `into` if that has the body's length and the vendor's client is not used.

    Raises:
        ClientError, OSError, and others of `VENDOR_ERRORS`.
        StorageError: The server does not support ranges.
    """
    bucket, _, key = path.partition("/")
    quick = await client.quick.get(bucket, key, span=span, etag=etag, into=into)
    if quick is not None:
        return _parse_answer(path, quick)
    requested: dict[str, object] = {"Bucket": bucket, "Key": key}
    if span:
        requested["Range"] = span
    if etag:
        requested["IfMatch"] = etag
    with noting() as sent:
        answer = cast(dict[str, Any], await client.get_object(**requested))
    size = int(answer["ContentLength"])
    async with answer["Body"] as stream:
        is_whole = answer["ResponseMetadata"]["HTTPStatusCode"] == HTTPStatus.OK
        if span and is_whole and not _asks_for_all(span, size):
            raise StorageError(
                f"The server of s3://{path} ignores Range requests, so large files would be read"
                " repeatedly.",
                remedy="Check for a proxy in between that drops the header Range.",
            )
        body: bytes = await stream.read()
    if len(body) != size:
        raise OSError(f"{len(body)} of {size} bytes came")
    await client.quick.learn(bucket, key, sent)
    size = _whole_size(str(answer.get("ContentRange", "")), size)
    etag = str(answer.get("ETag", ""))
    meta = FileMeta(path, size, convert_to_ms(answer["LastModified"]), derive_identity(etag))
    return Fetched(meta=meta, body=body, etag=etag)


def derive_identity(etag: str) -> int:
    """Return `FileMeta.identity` for an etag, which some servers do not quote."""
    return hash(etag.strip('"')) if etag else 0


def _parse_answer(path: str, answer: Answer) -> Fetched:
    headers = answer.headers
    size = _whole_size(headers.get("content-range", ""), len(answer.body))
    modified = parsedate(headers.get("last-modified", ""))
    if modified is None:
        raise OSError("the answer does not say when the file was written")
    etag = headers.get("etag", "")
    meta = FileMeta(path, size, calendar.timegm(modified) * 1000, derive_identity(etag))
    return Fetched(meta=meta, body=answer.body, etag=etag)


def _asks_for_all(span: str, size: int) -> bool:
    """Return whether a range covers a file of that size."""
    start, _, end = span.removeprefix("bytes=").partition("-")
    if not start:
        return int(end) >= size
    return int(start) == 0 and (not end or int(end) + 1 >= size)


def _whole_size(content_range: str, size: int) -> int:
    whole = content_range.rpartition("/")[2]
    return int(whole) if whole.isdecimal() else size


def convert_to_ms(time: datetime) -> int:
    """Return milliseconds since the epoch, of whole seconds."""
    # Some servers list files with milliseconds but return seconds for a GET, so only seconds are
    # comparable.
    return int(time.timestamp()) * 1000
