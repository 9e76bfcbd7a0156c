"""Identify the writer of a conditional put after its response was lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

from tailerd.storage.s3.connection import S3Client
from tailerd.storage.s3.failures import MISSING_CODES, VENDOR_ERRORS, code_of

PUT_TOKEN = "tailerd-put"
"""Metadata key of the token that identifies the writer of a conditional put."""


def was_put_by(path: str, token: str) -> Callable[[S3Client], Awaitable[bool]]:
    """Return a function that checks whether the file at `path` was put with `token`.

    False for a missing file: another writer created it and has deleted it since.
    """
    bucket, _, key = path.partition("/")

    async def ask(client: S3Client) -> bool:
        try:
            answer = cast(dict[str, Any], await client.head_object(Bucket=bucket, Key=key))
        except VENDOR_ERRORS as error:
            if code_of(error) not in MISSING_CODES:
                raise
            return False
        return bool(answer.get("Metadata", {}).get(PUT_TOKEN) == token)

    return ask
