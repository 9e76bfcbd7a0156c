"""The configuration file of a daemon: read again on request, or when it changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

import watchfiles

from tailerd.config import Config
from tailerd.config.loading import check_fixed
from tailerd.errors import TailerdError
from tailerd.storage.stores import StoreSettings
from tailerd.telemetry import Telemetry, events


class ConfigFile:
    """The configuration in its file; patterns are not resolved.

    Attributes:
        config: As it was last read without an error.
        is_watched: Whether a changed file is read without a request.
    """

    def __init__(
        self,
        config: Config,
        telemetry: Telemetry,
        *,
        path: Path | None,
        reload: Callable[[], Config] | None,
        is_watched: bool,
    ) -> None:
        """Initialize.

        Args:
            config: As it was read first.
            telemetry: Receives the result of reading a changed file.
            path: Where it came from.
            reload: Reads it again, blocking; None if that is not possible.
            is_watched: See the attribute.
        """
        self.config = config
        self.is_watched = is_watched
        self._telemetry = telemetry
        self._path = path
        self._reload = reload
        self._requested = asyncio.Event()

    @property
    def can_reload(self) -> bool:
        """Whether it can be read again."""
        return self._reload is not None

    def ask(self) -> None:
        """Request that it is read again."""
        self._requested.set()

    async def wait(self, seconds: float | None) -> bool:
        """Wait for a request (True), or for `seconds` (False)."""
        try:
            async with asyncio.timeout(seconds):
                await self._requested.wait()
        except TimeoutError:
            return False
        self._requested.clear()
        return True

    async def read_again(
        self, check: Callable[[Config], None], take: Callable[[Config, StoreSettings], None]
    ) -> None:
        """Apply the changed file, or report why not.

        Args:
            check: Raises TailerdError if the running daemon cannot continue with it.
            take: Called with the new configuration, and with its storage settings.
        """
        if self._reload is None:
            return
        path = str(self._path or "")
        try:
            config = await asyncio.to_thread(self._reload)
            check_fixed(self.config, config)
            check(config)
            storage = StoreSettings.from_config(config.storage)
        except TailerdError as error:
            self._telemetry.emit(
                events.ConfigRejected(path=path, error_code=error.code, error=str(error))
            )
            return
        self.config = config
        take(config, storage)
        self._telemetry.emit(events.ConfigReloaded(path=path))

    async def watch(self) -> None:
        """Request a new read whenever the file has other content."""
        path = self._path
        if path is None or not self.is_watched:
            return
        known = await asyncio.to_thread(_content, path)
        # The folder: editors and deployments replace the file.
        changes = watchfiles.awatch(path.absolute().parent, recursive=False)
        async with aclosing(changes) as batches:
            async for _ in batches:
                content = await asyncio.to_thread(_content, path)
                if content != known:
                    known = content
                    self.ask()


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        # In the middle of being replaced, or gone; the next event shows which.
        return None
