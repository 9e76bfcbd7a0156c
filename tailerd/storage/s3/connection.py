"""One account's client: its connections, and its requests with bounded retries."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import os
import ssl
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

from aiobotocore.client import AioBaseClient
from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession
from botocore import UNSIGNED
from botocore.httpsession import get_cert_path

from tailerd.errors import StorageError
from tailerd.storage.io_thread import IoThread
from tailerd.storage.remote_input import refuse_name
from tailerd.storage.retries import Retries
from tailerd.storage.s3.failures import (
    MISSING_CODES,
    VENDOR_ERRORS,
    are_stale,
    has_expired,
    is_refused_condition,
    map_failure,
    may_pass,
    read_error_code,
    read_status,
)
from tailerd.storage.s3.quick_gets import QuickGets, note_sent
from tailerd.storage.s3.settings import S3Account
from tailerd.storage.s3.signing import Keys

T = TypeVar("T")

# Whatever these loggers report is also raised as an error and logged once there.
for _name in ("botocore", "aiobotocore"):
    logging.getLogger(_name).addHandler(logging.NullHandler())

_REFRESH_SECONDS = 1.0
_CLOSE_SECONDS = 1.0


class S3Client(Protocol):
    """The parts of the vendor's client that are used, named after S3's operations."""

    @property
    def quick(self) -> QuickGets:
        """Fast GETs for buckets that the client has already used."""
        ...

    def __getattr__(self, name: str) -> Callable[..., Awaitable[dict[str, object]]]:
        """Return an operation."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request, as far as errors describe it.

    Attributes:
        doing: The right it needs: `list`, `get`, `put`, `delete`, `list uploads` or
            `abort an upload`.
        path: `bucket/key`.
        is_ours: Called when the condition fails: returns whether an earlier attempt, whose response
            was lost, had succeeded.
    """

    doing: str
    path: str
    is_ours: Callable[[S3Client], Awaitable[bool]] | None = None


PUT_TOKEN = "tailerd-put"
"""Metadata key of the token that identifies the writer of a conditional put."""


def was_put_by(path: str, token: str) -> Callable[[S3Client], Awaitable[bool]]:
    """Return a `Request.is_ours` that checks whether the file at `path` was put with `token`.

    False for a missing file: another writer created it and has deleted it since.
    """
    bucket, _, key = path.partition("/")

    async def ask(client: S3Client) -> bool:
        try:
            answer = cast(dict[str, Any], await client.head_object(Bucket=bucket, Key=key))
        except VENDOR_ERRORS as error:
            if read_error_code(error) not in MISSING_CODES:
                raise
            return False
        return bool(answer.get("Metadata", {}).get(PUT_TOKEN) == token)

    return ask


class Caller(Protocol):
    """Runs requests with the client of a bucket, on the I/O thread."""

    async def call(self, request: Request, work: Callable[[S3Client], Awaitable[T]]) -> T:
        """Run `work`, with retries."""
        ...


class Connection:
    """One account's connection; created and used only on the I/O thread."""

    def __init__(self, account: S3Account, thread: IoThread) -> None:
        """Connect with the first request."""
        self._account = account
        self._retries = Retries()
        self._client: S3Client | None = None
        self._stack = AsyncExitStack()
        self._opening = asyncio.Lock()
        self._opened_at = 0.0
        self._running = asyncio.Semaphore(account.max_connections)
        thread.at_end(self.close)

    async def call(self, request: Request, work: Callable[[S3Client], Awaitable[T]]) -> T | None:
        """Call `work` until it succeeds, fails permanently, or has used up its attempts.

        Returns:
            What `work` returned; None where an earlier attempt succeeded but its response was lost.

        Raises:
            StorageError: As mapped by `map_failure`.
        """
        has_renewed, attempt = False, 0
        while True:
            client: S3Client | None = None
            try:
                async with self._running:
                    client = await self._connect_client(request)
                    done = await work(client)
            except StorageError:
                raise
            except UnicodeEncodeError as error:
                raise refuse_name(f"s3://{request.path}") from error
            except (*VENDOR_ERRORS, RuntimeError) as error:
                if isinstance(error, RuntimeError) and not are_stale(error):
                    raise
                if is_refused_condition(error) and request.is_ours:
                    # Also on the first attempt: the layer below silently retries broken
                    # connections.
                    requested = Request(doing="get", path=request.path)
                    if await self.call(requested, request.is_ours):
                        return None
                elif not has_renewed and self._may_renew(error):
                    has_renewed = True
                    await self._renew(client)
                    continue
                elif may_pass(error) and await self._retries.wait(attempt, self._account.attempts):
                    attempt += 1
                    continue
                raise map_failure(
                    error, request.doing, request.path, attempts=attempt + 1
                ) from error
            else:
                self._retries.note_success()
                return done

    def _may_renew(self, error: Exception) -> bool:
        # The response to a HEAD has no body, so it cannot report expired credentials.
        is_mute = read_error_code(error) in ("400", "403") and read_status(error) in (400, 403)
        return has_expired(error) or (
            is_mute and time.monotonic() - self._opened_at > _REFRESH_SECONDS
        )

    async def _renew(self, used: S3Client | None) -> None:
        """Drop the client, so that the next one resolves credentials again."""
        if self._client is used:
            stack, self._stack, self._client = self._stack, AsyncExitStack(), None
            # Other requests are still in flight on it.
            task = asyncio.get_running_loop().create_task(_close_later(stack, self._account))
            self._stack.callback(task.cancel)

    async def _connect_client(self, request: Request) -> S3Client:
        if self._client is None:
            async with self._opening:
                if self._client is None:
                    self._client = await self._open(request)
                    self._opened_at = time.monotonic()
        return self._client

    async def _open(self, request: Request) -> S3Client:
        account = self._account
        try:
            session = AioSession(profile=account.profile or None)
            session.register_component("data_loader", service_models())
            region = account.region or os.environ.get("AWS_REGION") or _read_region(session)
            context = session.create_client(
                "s3",
                region_name=region or "us-east-1",
                endpoint_url=account.endpoint or None,
                aws_access_key_id=account.access_key_id or None,
                aws_secret_access_key=account.secret_access_key or None,
                aws_session_token=account.session_token or None,
                config=_client_config(account),
            )
            vendors = await self._stack.enter_async_context(context)
            quick = QuickGets(account, _make_key_source(account, session), lambda: _trust(session))
            vendors.meta.events.register("before-send.s3.GetObject", note_sent)
            self._stack.push_async_callback(quick.close)
            client = _Client(vendors, quick)
        except json.JSONDecodeError as error:
            raise StorageError(
                f"There are no credentials for s3://{request.path}: the output of the profile's"
                " credential_process is not JSON.",
                remedy="Run it by hand.",
            ) from error
        except ValueError as error:
            raise StorageError(
                f"s3://{request.path} cannot be accessed: {error}.",
                remedy="Check endpoint and region.",
            ) from error
        return client

    async def close(self) -> None:
        """Close open connections."""
        self._client = None
        await self._stack.aclose()


class _Client:
    """The vendor's client, together with the faster GETs."""

    def __init__(self, vendors: AioBaseClient, quick: QuickGets) -> None:
        self.quick = quick
        self._vendors = vendors

    def __getattr__(self, name: str) -> Callable[..., Awaitable[dict[str, object]]]:
        return cast(Callable[..., Awaitable[dict[str, object]]], getattr(self._vendors, name))


def _make_key_source(
    account: S3Account, session: AioSession
) -> Callable[[], Awaitable[Keys | None]]:
    """Return a function that returns the credentials with which the session's client signs."""

    async def keys() -> Keys | None:
        if account.access_key_id:
            return Keys(
                access=account.access_key_id,
                secret=account.secret_access_key,
                token=account.session_token,
            )
        held = await session.get_credentials()
        if held is None:
            return None
        now = await held.get_frozen_credentials()
        return Keys(access=now.access_key, secret=now.secret_key, token=now.token or "")

    return keys


def _trust(session: AioSession) -> ssl.SSLContext:
    """Return the TLS context, with the certificate authorities of the session's client."""
    bundle = session.get_config_variable("ca_bundle")
    return ssl.create_default_context(cafile=get_cert_path(bundle or True))


@functools.cache
def service_models() -> object:
    """Return the loader of S3's operations; a megabyte of JSON, parsed once for all clients."""
    return AioSession().get_component("data_loader")


async def _close_later(stack: AsyncExitStack, account: S3Account) -> None:
    try:
        await asyncio.sleep(account.read_timeout_seconds)
    finally:
        await asyncio.wait_for(stack.aclose(), _CLOSE_SECONDS)


def _read_region(session: AioSession) -> str:
    return str(session.get_config_variable("region") or "")


def _client_config(account: S3Account) -> AioConfig:
    has_endpoint = bool(
        account.endpoint
        or os.environ.get("AWS_ENDPOINT_URL_S3")
        or os.environ.get("AWS_ENDPOINT_URL")
    )
    is_path_style = has_endpoint if account.path_style is None else account.path_style
    return AioConfig(
        connect_timeout=account.connect_timeout_seconds,
        read_timeout=account.read_timeout_seconds,
        max_pool_connections=account.max_connections,
        # Retries happen in `Connection`, where a truncated body counts too.
        retries={"total_max_attempts": 1},
        s3={"addressing_style": "path" if is_path_style else "auto"},
        signature_version=UNSIGNED if account.is_anonymous else None,
        # Checksums beyond TCP's and TLS's cost as much CPU as the rest of a small request.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        parameter_validation=False,
        tcp_keepalive=True,
    )
