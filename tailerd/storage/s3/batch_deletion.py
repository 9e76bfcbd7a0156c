"""Files of a bucket deleted with one request, and what of it failed with another."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar, cast

from botocore.exceptions import ClientError

from tailerd.storage.s3.connection import Request, S3Client
from tailerd.storage.s3.failures import BUSY_CODES, MISSING_CODES, code_of, is_unknown_operation

T = TypeVar("T")


class Caller(Protocol):
    """Does work with a bucket's client."""

    async def call(self, request: Request, work: Callable[[S3Client], Awaitable[T]]) -> T:
        """Do it until it succeeds or cannot."""
        ...


async def delete_batch(store: Caller, paths: Sequence[str]) -> None:
    """Delete files of one bucket; on the thread of connections.

    What a server could not do at the moment is asked for again, that alone. Where it knows no
    such request, files are deleted one after the other.

    Raises:
        StorageError: Some are still there.
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
    """Return the answer to the whole request that what failed of it amounts to."""
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
