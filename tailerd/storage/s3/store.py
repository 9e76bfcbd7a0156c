"""S3 as an object store."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar, cast

from botocore.exceptions import ClientError

from tailerd.errors import (
    ConditionalPutUnsupportedError,
    FileExistsAlreadyError,
    FileMissingError,
    StorageError,
)
from tailerd.storage.base import BATCH_FILES, FileMeta
from tailerd.storage.io_thread import io_thread
from tailerd.storage.output import Output
from tailerd.storage.remote_input import Fetched, RemoteReads
from tailerd.storage.s3.connection import (
    PUT_TOKEN,
    Caller,
    Connection,
    Request,
    S3Client,
    was_put_by,
)
from tailerd.storage.s3.failures import (
    BUSY_CODES,
    MISSING_CODES,
    VENDOR_ERRORS,
    is_beyond_the_end,
    is_unknown_operation,
    read_error_code,
)
from tailerd.storage.s3.fetching import convert_to_ms, derive_identity, get_object
from tailerd.storage.s3.multipart import MultipartOutput, abort_old_uploads
from tailerd.storage.s3.settings import S3Account, S3Settings

T = TypeVar("T")

PROBE = ".tailerd-probe"


def split(path: str) -> tuple[str, str]:
    """Return bucket and key of a path."""
    bucket, _, key = path.partition("/")
    return bucket, key


class S3Store(RemoteReads):
    """Buckets as folders: paths are `bucket/key`, taken literally.

    Times are whole seconds, as in S3. Requests run on a dedicated thread, so the store may be used
    from any event loop, and from threads without one.
    """

    scheme: str = "s3"
    is_remote: bool = True
    is_local_folder: bool = False

    def __init__(self, settings: S3Settings | None = None) -> None:
        """Connect with the first request.

        Args:
            settings: By default those of the environment.
        """
        self.settings = settings or S3Settings(default=S3Account.from_environment())
        # Both are used only on the I/O thread.
        self._connections: dict[tuple[int, S3Account], Connection] = {}
        self._is_conditional_put_honoured: dict[tuple[S3Account, str], bool] = {}

    def __reduce__(self) -> tuple[type[S3Store], tuple[S3Settings]]:
        """Pickle only the settings: the other process opens its own connections."""
        return type(self), (self.settings,)

    def format_url(self, path: str) -> str:
        """Return the `s3:` URL, without escapes."""
        return f"s3://{path}"

    async def list_from(self, folder: str, start_after: str = "") -> AsyncIterator[FileMeta]:
        """List as `ObjectStore.list_from`, in pages of a thousand names."""
        bucket, key = split(folder.rstrip("/"))
        prefix = f"{key}/" if key else ""
        requested: dict[str, object] = {"Bucket": bucket, "Prefix": prefix, "Delimiter": "/"}
        if start_after:
            requested["StartAfter"] = prefix + start_after
        while True:
            answer = await self._ask(
                "list", folder, lambda client: client.list_objects_v2(**requested)
            )
            found = cast(list[dict[str, Any]], answer.get("Contents", []))
            for entry in found:
                name = str(entry["Key"])
                # A key that ends with a slash is a folder marker, not a file.
                if not name.endswith("/") and name > prefix + start_after:
                    yield FileMeta(
                        f"{bucket}/{name}",
                        int(entry["Size"]),
                        convert_to_ms(entry["LastModified"]),
                        derive_identity(str(entry.get("ETag", ""))),
                    )
            token = answer.get("NextContinuationToken")
            if not answer.get("IsTruncated") or not token:
                return
            requested["ContinuationToken"] = token

    async def list_folders(
        self, folder: str, starts_with: str = "", on_page: Callable[[], None] | None = None
    ) -> AsyncIterator[str]:
        """List as `ListsFolders.list_folders`; pages also contain files, which are skipped."""
        bucket, key = split(folder.rstrip("/"))
        prefix = f"{key}/" if key else ""
        requested: dict[str, object] = {"Bucket": bucket, "Delimiter": "/"}
        requested["Prefix"] = prefix + starts_with
        while True:
            if on_page is not None:
                on_page()
            answer = await self._ask(
                "list", folder, lambda client: client.list_objects_v2(**requested)
            )
            for entry in cast(list[dict[str, str]], answer.get("CommonPrefixes", [])):
                yield entry["Prefix"].removeprefix(prefix).removesuffix("/")
            token = answer.get("NextContinuationToken")
            if not answer.get("IsTruncated") or not token:
                return
            requested["ContinuationToken"] = token

    async def fetch_here(
        self,
        path: str,
        start: int = 0,
        length: int | None = None,
        etag: str = "",
        into: memoryview | None = None,
    ) -> Fetched:
        """Do what `fetch` does, on the I/O thread; as `fetching.Fetch`."""
        span = _range(start, length) if start or length is not None else ""

        async def work(client: S3Client) -> Fetched:
            try:
                return await get_object(client, path, span, etag, into)
            except VENDOR_ERRORS as error:
                if not is_beyond_the_end(error):
                    raise
                return Fetched(meta=await _head(client, path), body=b"")

        try:
            return await self.call(Request(doing="get", path=path), work)
        except FileExistsAlreadyError as error:
            raise StorageError(f"s3://{path} was replaced while it was read.") from error

    async def head(self, path: str) -> FileMeta:
        """Return size and modification time."""
        self.require_key(path)
        return await self._ask("get", path, lambda client: _head(client, path))

    async def is_there(self, path: str) -> bool:
        """Return whether a file exists; called on the I/O thread."""
        try:
            await self.call(Request(doing="get", path=path), lambda client: _head(client, path))
        except FileMissingError:
            return False
        return True

    async def put(self, path: str, data: bytes, *, if_absent: bool = False) -> None:
        """Write a file; with `if_absent` exactly one concurrent writer succeeds.

        Raises:
            ConditionalPutUnsupportedError: This server cannot guarantee that.
        """
        await io_thread().run(self._put(path, data, if_absent))

    async def _put(self, path: str, data: bytes, if_absent: bool) -> None:
        if if_absent:
            await self.check_conditional_put(path.rpartition("/")[0])
        await self._put_unchecked(path, data, if_absent)

    async def _put_unchecked(self, path: str, data: bytes, if_absent: bool) -> None:
        bucket, key = split(path)
        requested: dict[str, object] = {"Bucket": bucket, "Key": key, "Body": bytes(data)}
        token = secrets.token_hex(8)
        if if_absent:
            requested |= {"IfNoneMatch": "*", "Metadata": {PUT_TOKEN: token}}
        request = Request(doing="put", path=path, is_ours=was_put_by(path, token))
        await self.call(request, lambda client: client.put_object(**requested))

    async def check_conditional_put(self, folder: str) -> None:
        """Check, once per bucket, that the server honours the condition of `if_absent`.

        Some servers ignore the condition and overwrite silently.

        Raises:
            ConditionalPutUnsupportedError: It does not.
        """
        bucket = split(folder)[0]
        key = (self._account(bucket), bucket)
        known = self._is_conditional_put_honoured.get(key)
        if known is None:
            # First the fixed name, so that at most one file stays where deleting is denied. Another
            # process may delete it meanwhile, so the second probe has a name that only this process
            # knows.
            known = await self._is_conditional(f"{folder}/{PROBE}") or await self._is_conditional(
                f"{folder}/{PROBE}-{secrets.token_hex(8)}"
            )
            self._is_conditional_put_honoured[key] = known
        if not known:
            raise ConditionalPutUnsupportedError(
                f"The server of s3://{bucket} does not honour conditional writes, so two writers"
                " could both succeed.",
                remedy="Use a server with If-None-Match for maintenance and state; tables can be"
                " read without it.",
            )

    async def _is_conditional(self, probe: str) -> bool:
        try:
            await self._put_unchecked(probe, b"", if_absent=True)
        except FileExistsAlreadyError:
            # Left by a process that is probing too, or that could not delete it.
            return True
        except ConditionalPutUnsupportedError:
            return False
        try:
            await self._put_unchecked(probe, b"", if_absent=True)
        except FileExistsAlreadyError:
            return True
        except ConditionalPutUnsupportedError:
            return False
        else:
            return False
        finally:
            # The result is known, whether or not this user may delete.
            with suppress(StorageError):
                await self._delete([probe])

    async def delete(self, path: str) -> None:
        """Delete a file; succeeds if it does not exist."""
        await io_thread().run(self._delete([path]))

    async def delete_many(self, paths: Sequence[str]) -> None:
        """Delete as `DeletesMany.delete_many`."""
        await io_thread().run(self._delete(list(paths)))

    async def _delete(self, paths: list[str]) -> None:
        for first in range(0, len(paths), BATCH_FILES):
            batch = paths[first : first + BATCH_FILES]
            if len(batch) == 1:
                await self._delete_one(batch[0])
            else:
                await _delete_batch(self, batch)

    async def _delete_one(self, path: str) -> None:
        bucket, key = split(path)
        request = Request(doing="delete", path=path)
        with suppress(FileMissingError):
            await self.call(request, lambda client: client.delete_object(Bucket=bucket, Key=key))

    def require_key(self, path: str) -> None:
        """Refuse the path of a bucket itself."""
        if not split(path)[1]:
            raise FileMissingError(f"s3://{path} is a bucket, a file was expected.")

    def open_output(self, path: str) -> Output:
        """Start a file that is written in chunks, blocking."""
        return MultipartOutput(self, path)

    async def sweep(self, folder: str, before_ms: int) -> int:
        """Abort uploads that dead writers left; return the number."""
        return await io_thread().run(abort_old_uploads(self, folder, before_ms))

    async def _ask(self, doing: str, path: str, work: Callable[[S3Client], Awaitable[T]]) -> T:
        return await io_thread().run(self.call(Request(doing=doing, path=path), work))

    async def call(self, request: Request, work: Callable[[S3Client], Awaitable[T]]) -> T:
        """Call `work` with the client of a path's bucket, on the I/O thread."""
        bucket, _ = split(request.path)
        if not bucket:
            raise StorageError(f"s3://{request.path} names no bucket.")
        connection = self._connection(self._account(bucket))
        # None only where a conditional write's response was lost, and no caller uses that one.
        return cast(T, await connection.call(request, work))

    def _account(self, bucket: str) -> S3Account:
        return self.settings.select_account(bucket)

    def _connection(self, account: S3Account) -> Connection:
        # A forked process has another thread, and needs its own connections.
        thread = io_thread()
        found = self._connections.get((id(thread), account))
        if found is None:
            found = self._connections[(id(thread), account)] = Connection(account, thread)
        return found


async def _head(client: S3Client, path: str) -> FileMeta:
    bucket, key = split(path)
    answer = cast(dict[str, Any], await client.head_object(Bucket=bucket, Key=key))
    return _meta(path, answer)


def _meta(path: str, answer: dict[str, Any]) -> FileMeta:
    size, mtime_ms = int(answer["ContentLength"]), convert_to_ms(answer["LastModified"])
    return FileMeta(path, size, mtime_ms, derive_identity(str(answer.get("ETag", ""))))


def _range(start: int, length: int | None) -> str:
    if start < 0:
        return f"bytes={start}"
    return f"bytes={start}-" if length is None else f"bytes={start}-{start + length - 1}"


async def _delete_batch(store: Caller, paths: Sequence[str]) -> None:
    """Delete files of one bucket with one request; runs on the I/O thread.

    A retry requests only the files that failed. If the server does not implement the request, files
    are deleted individually.

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
            if read_error_code(error) not in MISSING_CODES:
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
