"""Endpoints and accounts of buckets, as values."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import SecretStr

    from tailerd.config.storage import BucketConfig, StorageConfig

SKIP_SIGNATURE = "AWS_SKIP_SIGNATURE"
"""Environment variable, as in other Delta clients: send unsigned requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Account:
    """The connection settings of one bucket, or of all without their own entry. Picklable.

    Empty fields are left to the SDK: `AWS_*` of the environment, profiles, web identity and the
    machine's role.

    Attributes:
        path_style: Whether the bucket is in the URL's path; None means yes with an endpoint, and
            AWS's own form otherwise.
        is_anonymous: Requests are not signed.
        attempts: Per request, including the first.
        hedge_seconds: Wait for a GET's first byte before a second, concurrent request; None for no
            second request.
    """

    endpoint: str = ""
    region: str = ""
    path_style: bool | None = None
    profile: str = ""
    access_key_id: str = field(default="", repr=False)
    secret_access_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)
    is_anonymous: bool = False
    connect_timeout_seconds: float = 5.0
    read_timeout_seconds: float = 20.0
    attempts: int = 6
    max_connections: int = 64
    hedge_seconds: float | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> S3Account:
        """Return the account for commands without a configuration file."""
        values = os.environ if environment is None else environment
        return cls(is_anonymous=values.get(SKIP_SIGNATURE, "").lower() in ("1", "true", "yes"))


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Settings:
    """The account of every bucket.

    Attributes:
        buckets: (bucket, account) of those that differ from `default`.
    """

    default: S3Account = field(default_factory=S3Account)
    buckets: tuple[tuple[str, S3Account], ...] = ()

    def select_account(self, bucket: str) -> S3Account:
        """Return a bucket's account."""
        return next((account for name, account in self.buckets if name == bucket), self.default)

    @classmethod
    def from_config(cls, config: StorageConfig) -> S3Settings:
        """Return the settings of a configuration section."""
        default = replace(
            _account(S3Account.from_environment(), config),
            connect_timeout_seconds=config.connect_timeout,
            read_timeout_seconds=config.read_timeout,
            attempts=config.attempts,
            max_connections=config.max_connections,
            hedge_seconds=config.hedge_after,
        )
        buckets = ((name, _account(default, own)) for name, own in config.buckets.items())
        return cls(default=default, buckets=tuple(buckets))


def _account(base: S3Account, config: BucketConfig) -> S3Account:
    """Return `base` with a section's settings; credentials are replaced together, never in part."""
    if config.anonymous or config.profile or config.access_key_id:
        base = replace(
            base,
            profile=config.profile or "",
            access_key_id=_plain(config.access_key_id),
            secret_access_key=_plain(config.secret_access_key),
            session_token=_plain(config.session_token),
            is_anonymous=config.anonymous,
        )
    return replace(
        base,
        endpoint=config.endpoint or base.endpoint,
        region=config.region or base.region,
        path_style=base.path_style if config.path_style is None else config.path_style,
    )


def _plain(secret: SecretStr | None) -> str:
    return "" if secret is None else secret.get_secret_value()
