"""TLS of the listener: certificates from files, reloaded when they are renewed."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

from tailerd.config import TlsConfig
from tailerd.errors import ConfigError

CHECK_SECONDS = 30.0


class Certificates:
    """The current certificate of the listener.

    Attributes:
        context: Used by connections; later ones use a renewed certificate.
    """

    def __init__(self, config: TlsConfig) -> None:
        """Read the files.

        Raises:
            ConfigError: One cannot be read, or they do not belong together.
        """
        self._config = config
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._seen = self._times()
        self._load(self.context)
        if config.client_ca is not None:
            # Optional: probes have none, and callers that need one get an answer that says so.
            self.context.verify_mode = ssl.CERT_OPTIONAL
            try:
                self.context.load_verify_locations(cafile=config.client_ca)
            except (OSError, ssl.SSLError) as error:
                raise _unusable("client_ca", config.client_ca, error) from error

    def renew(self) -> bool:
        """Load changed files; return whether that was done.

        Files that do not match are ignored until they do: a renewal writes them in sequence.
        """
        times = self._times()
        if times == self._seen:
            return False
        try:
            # Tested first, so that a half-written pair does not replace a valid one.
            self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
            self._load(self.context)
        except ConfigError:
            return False
        self._seen = times
        return True

    async def keep_renewed(self) -> None:
        """Check the files every `CHECK_SECONDS`, until cancelled."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            await asyncio.to_thread(self.renew)

    def _load(self, context: ssl.SSLContext) -> None:
        try:
            context.load_cert_chain(self._config.cert, self._config.key, password="")
        except (OSError, ssl.SSLError) as error:
            which = "key" if Path(self._config.cert).is_file() else "cert"
            raise _unusable(which, getattr(self._config, which), error) from error

    def _times(self) -> tuple[int, ...]:
        found = []
        for path in (self._config.cert, self._config.key):
            try:
                found.append(Path(path).stat().st_mtime_ns)
            except OSError:
                found.append(0)
        return tuple(found)


def _unusable(field: str, path: str, error: Exception) -> ConfigError:
    reason = getattr(error, "strerror", None) or getattr(error, "reason", None) or error
    return ConfigError(
        f"http.tls.{field} is {path}, which cannot be used: {reason}.",
        remedy="It is a PEM file that this user may read; cert and key must belong together.",
    )
