"""Whose conditional put it was: what tells it after an answer was lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

from tailerd.storage.s3.connection import S3Client
from tailerd.storage.s3.failures import MISSING_CODES, VENDOR_ERRORS, code_of

PUT_TOKEN = "tailerd-put"
"""Metadata that tells whose conditional put it was, where the answer was lost."""


def was_put_by(path: str, token: str) -> Callable[[S3Client], Awaitable[bool]]:
    """Return what tells whether the file at `path` is the one that was put with `token`.

    A file that is not there any more is not: it was somebody's who has deleted it.
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
