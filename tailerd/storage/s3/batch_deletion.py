"""Delete files of a bucket with one request; a retry requests only those that failed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar, cast

from botocore.exceptions import ClientError

from tailerd.storage.s3.connection import Request, S3Client
from tailerd.storage.s3.failures import BUSY_CODES, MISSING_CODES, code_of, is_unknown_operation

T = TypeVar("T")


class Caller(Protocol):
    """Runs requests with a bucket's client."""

    async def call(self, request: Request, work: Callable[[S3Client], Awaitable[T]]) -> T:
        """Run `work`, with retries."""
        ...


async def delete_batch(store: Caller, paths: Sequence[str]) -> None:
    """Delete files of one bucket with one request; runs on the I/O thread.

    A retry requests only the files that failed. If the server does not implement the request, files
    are deleted one by one.

    Raises:
        StorageError: Some files still exist.
    """
    bucket = paths[0].partition("/")[0]
    left = [path.partition("/")[2] for path in paths]

    async def work(client: S3Client) -> None:
        nonlocal left
        named = {"Objects": [{"Key": key} for key in left], "Quiet": True}
        try:
            answer = await client.delete_objects(Bucket=bucket, Delete=named)
        except ClientError as error:
            if not is_unknown_operation(error):
                raise
            left = await _delete_singly(client, bucket, left)
            return
        failed = cast(list[dict[str, str]], answer.get("Errors", []))
        failed = [each for each in failed if each.get("Code") not in MISSING_CODES]
        if failed:
            keys = {each.get("Key", "") for each in failed}
            left = [key for key in left if key in keys]
            raise _failure(failed)

    await store.call(Request(doing="delete", path=paths[0]), work)


async def _delete_singly(client: S3Client, bucket: str, keys: Sequence[str]) -> list[str]:
    for key in keys:
        try:
            await client.delete_object(Bucket=bucket, Key=key)
        except ClientError as error:
            if code_of(error) not in MISSING_CODES:
                raise
    return []


def _failure(failed: Sequence[dict[str, str]]) -> ClientError:
    """Return one error for the files that failed, with the code of a permanent failure if any."""
    lasting = [each for each in failed if each.get("Code") not in BUSY_CODES]
    first = (lasting or failed)[0]
    code = first.get("Code", "")
    message = f"{len(failed)} files were not deleted, first {first.get('Key')}"
    status = 403 if code == "AccessDenied" else 200
    return ClientError(
        {
            "Error": {"Code": code, "Message": message},
            "ResponseMetadata": {"HTTPStatusCode": status},
        },
        "DeleteObjects",
    )
