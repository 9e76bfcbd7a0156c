"""Signatures of requests, and tokens of OAuth client credentials."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from base64 import b64decode, b64encode
from collections.abc import Mapping
from urllib.parse import quote_plus

import aiohttp

from tailerd.errors import ConfigError, SinkError, SinkRefusedError
from tailerd.sinks.http.config import OAuthConfig

_STANDARD_PREFIX = "whsec_"
_MAX_TOKEN_BYTES = 64 * 1024
_EARLY_SECONDS = 30.0
"""A token is renewed before it expires by this, or by half of its life."""


def decode_hmac_key(text: str) -> bytes:
    """Return the key of signatures.

    Raises:
        ConfigError: It has the prefix `whsec_`, but no base64 after it.
    """
    if not text.startswith(_STANDARD_PREFIX):
        return text.encode()
    try:
        return b64decode(text.removeprefix(_STANDARD_PREFIX), validate=True)
    except ValueError:
        # The text is a secret, which the error must not repeat.
        raise ConfigError(
            "hmac_key begins with `whsec_`, but the rest is not base64.",
            remedy="Copy the key again, or give one without this prefix.",
            where="hmac_key",
        ) from None


def sign_body(key: bytes, identity: str, now_seconds: int, body: bytes) -> Mapping[str, str]:
    """Return the headers of a signature, as Standard Webhooks 1.0 defines them.

    Args:
        key: The key.
        identity: Id of the request, the same for each attempt.
        now_seconds: Time of the attempt, in seconds since the epoch.
        body: The body before compression.
    """
    signed = hmac.digest(key, f"{identity}.{now_seconds}.".encode() + body, "sha256")
    return {
        "webhook-id": identity,
        "webhook-timestamp": str(now_seconds),
        "webhook-signature": f"v1,{b64encode(signed).decode()}",
    }


class TokenSource:
    """Requests tokens, and keeps the newest one until it expires."""

    def __init__(self, config: OAuthConfig) -> None:
        self._config = config
        self._busy = asyncio.Lock()
        self._token = ""
        self._ends = 0.0

    async def token(self, session: aiohttp.ClientSession) -> str:
        """Return a valid token; may request it.

        Raises:
            SinkRefusedError: The server refuses the credentials.
            SinkError: The server does not answer or fails, or its answer has no token.
        """
        async with self._busy:
            if time.monotonic() >= self._ends:
                try:
                    self._token, seconds = await self._request(session)
                except (aiohttp.ClientError, OSError) as error:
                    raise SinkError(
                        f"The token server {self._config.token_url} did not answer:"
                        f" {type(error).__name__}.",
                        remedy="Check that server and token_url of `oauth`.",
                    ) from error
                self._ends = time.monotonic() + seconds - min(_EARLY_SECONDS, seconds / 2)
            return self._token

    def discard(self, token: str) -> None:
        """Do not use a token again, because the endpoint refused it."""
        if token == self._token:
            self._ends = 0.0

    async def _request(self, session: aiohttp.ClientSession) -> tuple[str, float]:
        config = self._config
        secret = config.client_secret.get_secret_value()
        # RFC 6749, section 2.3.1: both are encoded before they are joined.
        pair = f"{quote_plus(config.client_id)}:{quote_plus(secret)}"
        optional = {"scope": config.scope, "audience": config.audience}
        form = {name: value for name, value in optional.items() if value is not None}
        async with session.post(
            config.token_url,
            data={"grant_type": "client_credentials", **form},
            headers={
                "Authorization": f"Basic {b64encode(pair.encode()).decode()}",
                "Accept": "application/json",
            },
            allow_redirects=False,
        ) as response:
            status = response.status
            if status == 200:
                return self._parse(await response.content.read(_MAX_TOKEN_BYTES))
        message = f"The token server {config.token_url} answered {status}"
        if 300 <= status < 500 and status not in (408, 429):
            raise SinkRefusedError(
                f"{message}, so it issues no token.",
                remedy="Correct token_url, client_id, client_secret or scope of `oauth`.",
            )
        raise SinkError(f"{message}.", remedy="Check that server.")

    def _parse(self, content: bytes) -> tuple[str, float]:
        """Return the token and its life in seconds."""
        try:
            answer = json.loads(content)
            token = answer["access_token"]
            seconds = float(answer.get("expires_in") or 3600)
        except (ValueError, KeyError, TypeError, AttributeError):
            token, seconds = None, 0.0
        if not isinstance(token, str) or not token or not (token.isascii() and token.isprintable()):
            raise SinkError(
                f"The answer of the token server {self._config.token_url} has no access_token.",
                remedy="Check token_url of `oauth`.",
            )
        return token, seconds
