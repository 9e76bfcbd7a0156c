"""Files that are uploaded in parts while they are written; invisible until the upload completes."""

from __future__ import annotations

import asyncio
import secrets
import threading
from concurrent.futures import Future
from contextlib import suppress
from datetime import datetime
from typing import Any, Protocol, cast

from botocore.exceptions import ClientError

from tailerd.errors import FileExistsAlreadyError, FileMissingError, StorageError
from tailerd.storage.io_thread import io_thread
from tailerd.storage.output import Output
from tailerd.storage.s3.connection import PUT_TOKEN, Caller, Request, S3Client, was_put_by
from tailerd.storage.s3.failures import is_unknown_operation

PART_BYTES = 8 * 1024 * 1024
"""S3 allows ten thousand parts of at least 5 MiB: this is enough for 80 GB."""
PARTS_AT_ONCE = 3


class UploadStore(Caller, Protocol):
    """The part of a store that an upload needs; all but `put` run on the I/O thread."""

    async def put(self, path: str, data: bytes, *, if_absent: bool = False) -> None:
        """Write a file with one request."""
        ...

    async def is_there(self, path: str) -> bool:
        """Return whether a file exists."""
        ...

    async def check_conditional_put(self, folder: str) -> None:
        """Check that the server honours the condition of `if_absent`."""
        ...


class MultipartOutput(Output):
    """One file: a single put if smaller than a part, else a multipart upload.

    The upload of a dead writer is invisible but costs money: `abort_old_uploads` aborts it. It also
    aborts those that `discard` could not: an error of aborting must not hide the original one.
    """

    def __init__(self, store: UploadStore, path: str) -> None:
        """Start a file; no request is sent yet."""
        self._store = store
        self._path = path
        self._bucket, _, self._key = path.partition("/")
        self._token = secrets.token_hex(8)
        self._pending = bytearray()
        self._upload = ""
        self._parts: list[Future[dict[str, object]]] = []
        self._is_over = False
        # A writer may still be running in its thread when the file is discarded.
        self._ending = threading.Lock()

    def write(self, data: bytes) -> int:  # type: ignore[override]
        """Append the next chunk; blocks while `PARTS_AT_ONCE` parts are being uploaded."""
        size = memoryview(data).nbytes
        if self._is_over:
            return size
        self._pending += memoryview(data).cast("B")
        self.size_bytes += size
        while len(self._pending) >= PART_BYTES:
            part = bytes(self._pending[:PART_BYTES])
            del self._pending[:PART_BYTES]
            self._send(part)
        return size

    def _send(self, part: bytes) -> None:
        if not self._upload and not self._is_begun():
            return
        if len(self._parts) >= PARTS_AT_ONCE:
            self._parts[-PARTS_AT_ONCE].result()
        with self._ending:
            if not self._is_over:
                number = len(self._parts) + 1
                self._parts.append(io_thread().submit(self._put_part(self._named, number, part)))

    def _is_begun(self) -> bool:
        """Start the upload; return False if the file was discarded meanwhile."""
        upload = io_thread().call(self._begin())
        with self._ending:
            if not self._is_over:
                self._upload = upload
                return True
        io_thread().call(self._abort(upload))
        return False

    async def _begin(self) -> str:
        answer = await self._call(
            lambda client: client.create_multipart_upload(
                Bucket=self._bucket, Key=self._key, Metadata={self._token_name: self._token}
            )
        )
        return str(answer["UploadId"])

    async def _put_part(self, named: dict[str, str], number: int, part: bytes) -> dict[str, object]:
        try:
            answer = await self._call(
                lambda client: client.upload_part(**named, PartNumber=number, Body=part)
            )
        except FileMissingError as error:
            raise self._abort_error() from error
        return {"PartNumber": number, "ETag": answer["ETag"]}

    async def finish(self, *, if_absent: bool = False) -> None:
        """Make the complete file visible.

        Raises:
            FileExistsAlreadyError: With `if_absent`, another writer was first.
            StorageError: A part, or the completion, failed; the file does not appear.
        """
        self._is_over = True
        if not self._upload:
            await self._store.put(self._path, bytes(self._pending), if_absent=if_absent)
            return
        try:
            await io_thread().run(self._finish(if_absent))
        except BaseException:
            await self.discard()
            raise
        self._upload = ""

    async def _finish(self, if_absent: bool) -> None:
        if if_absent:
            await self._store.check_conditional_put(self._path.rpartition("/")[0])
            await self._check_absent()
        parts = [await _await_part(part) for part in self._parts]
        if self._pending:
            parts.append(await self._put_part(self._named, len(parts) + 1, bytes(self._pending)))
        condition = {"IfNoneMatch": "*"} if if_absent else {}
        is_ours = was_put_by(self._path, self._token)
        try:
            await self._store.call(
                Request(doing="put", path=self._path, is_ours=is_ours),
                lambda client: client.complete_multipart_upload(
                    **self._named, MultipartUpload={"Parts": parts}, **condition
                ),
            )
        except FileMissingError as error:
            # The upload does not exist: it was completed and the response lost, or it was aborted.
            if not await self._store.call(Request(doing="get", path=self._path), is_ours):
                raise self._abort_error() from error

    def _abort_error(self) -> StorageError:
        return StorageError(f"The upload of s3://{self._path} was aborted by another process.")

    async def _check_absent(self) -> None:
        # Some servers support the condition for a put but not for completing an upload.
        if await self._store.is_there(self._path):
            raise FileExistsAlreadyError(f"s3://{self._path} exists already.")

    async def discard(self) -> None:
        """Abort the upload; one that cannot be aborted is left to `abort_old_uploads`."""
        with self._ending:
            self._is_over = True
            upload, self._upload = self._upload, ""
        self._pending.clear()
        if upload:
            await io_thread().run(self._abort(upload))

    async def _abort(self, upload: str) -> None:
        for part in self._parts:
            part.cancel()
        with suppress(StorageError):
            await abort_upload(self._store, self._path, upload)

    async def _call(self, work: Any) -> dict[str, object]:
        answer = await self._store.call(Request(doing="put", path=self._path), work)
        return cast(dict[str, object], answer)

    @property
    def _named(self) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._key, "UploadId": self._upload}

    @property
    def _token_name(self) -> str:
        return PUT_TOKEN


async def abort_upload(store: Caller, path: str, upload: str) -> None:
    """Abort an upload; succeeds if it does not exist."""
    bucket, _, key = path.partition("/")

    async def work(client: S3Client) -> None:
        await client.abort_multipart_upload(Bucket=bucket, Key=key, UploadId=upload)

    try:
        await store.call(Request(doing="abort an upload", path=path), work)
    except FileMissingError:
        return


async def abort_old_uploads(store: Caller, folder: str, before_ms: int) -> int:
    """Abort uploads into a folder started before a time, in ms since the epoch; return their count.

    Raises:
        AccessDeniedError: Uploads may not be listed, or not be aborted.
        StorageError: A request failed.
    """
    bucket, _, key = folder.partition("/")
    requested: dict[str, object] = {"Bucket": bucket, "Prefix": f"{key}/" if key else ""}
    aborted = 0

    async def list_uploads(client: S3Client) -> dict[str, object]:
        try:
            return await client.list_multipart_uploads(**requested)
        except ClientError as error:
            if not is_unknown_operation(error):
                raise
            # A server that cannot list uploads cleans them up in its own way.
            return {}

    while True:
        answer = await store.call(Request(doing="list uploads", path=folder), list_uploads)
        for upload in cast(list[dict[str, Any]], answer.get("Uploads", [])):
            began: datetime = upload["Initiated"]
            if began.timestamp() * 1000 < before_ms:
                await abort_upload(store, f"{bucket}/{upload['Key']}", str(upload["UploadId"]))
                aborted += 1
        if not answer.get("IsTruncated"):
            return aborted
        requested["KeyMarker"] = answer.get("NextKeyMarker")
        requested["UploadIdMarker"] = answer.get("NextUploadIdMarker")


async def _await_part(part: Future[dict[str, object]]) -> dict[str, object]:
    return await asyncio.wrap_future(part)
