"""Where buckets are and who asks for them: values, and the ones this process works with."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

SKIP_SIGNATURE = "AWS_SKIP_SIGNATURE"
"""Of the environment, as other Delta clients have it: ask without credentials."""


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Account:
    """How one bucket, or every one without an entry of its own, is reached. Picklable.

    What is empty is left to the SDK: `AWS_*` of the environment, profiles, web identity and the
    machine's own role.

    Attributes:
        path_style: Whether the bucket is in the URL's path; None where there is an endpoint, and
            AWS's own form elsewhere.
        is_anonymous: Requests are not signed.
        attempts: Of each request, with the first.
    """

    endpoint: str = ""
    region: str = ""
    path_style: bool | None = None
    profile: str = ""
    access_key_id: str = ""
    secret_access_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)
    is_anonymous: bool = False
    connect_timeout_seconds: float = 5.0
    read_timeout_seconds: float = 20.0
    attempts: int = 6
    max_connections: int = 64

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] | None = None) -> S3Account:
        """Return what commands use that have no configuration file."""
        values = os.environ if environment is None else environment
        return cls(is_anonymous=values.get(SKIP_SIGNATURE, "").lower() in ("1", "true", "yes"))


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Settings:
    """The account of every bucket.

    Attributes:
        buckets: (bucket, account) of those that differ.
    """

    default: S3Account = field(default_factory=S3Account)
    buckets: tuple[tuple[str, S3Account], ...] = ()

    def account_of(self, bucket: str) -> S3Account:
        """Return how a bucket is reached."""
        return next((account for name, account in self.buckets if name == bucket), self.default)

    def with_attempts(self, attempts: int) -> S3Settings:
        """Return the same with another number of attempts."""
        return S3Settings(
            default=replace(self.default, attempts=attempts),
            buckets=tuple((b, replace(account, attempts=attempts)) for b, account in self.buckets),
        )


_in_use: S3Settings | None = None


def use_settings(settings: S3Settings | None) -> None:
    """Let every place of this process named by a URL be reached so; None: as the environment says.

    Connections that are open stay; requests begun later use the new settings.
    """
    global _in_use
    _in_use = settings


def settings_in_use() -> S3Settings:
    """Return the settings of this process, for other processes to use too."""
    return _in_use or S3Settings(default=S3Account.of_environment())
