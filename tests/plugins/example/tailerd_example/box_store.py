"""The store `box`: `box://box/name`. A dictionary takes the place of a server's client."""

from __future__ import annotations

import io
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO
from urllib.parse import quote, unquote

from tailerd.plugins import ConfigError, FileExistsAlreadyError, FileMeta, FileMissingError

FILES: dict[str, tuple[FileMeta, bytes]] = {}


class BoxStore:
    """Files of all boxes; a call of a real client goes to a thread or awaits its answer."""

    scheme, is_remote, is_local_folder = "box", True, False

    def format_url(self, path: str) -> str:
        return f"box://{quote(path)}"

    async def list_from(self, folder: str, start_after: str = "") -> AsyncIterator[FileMeta]:
        prefix = folder.rstrip("/") + "/"
        for path in sorted(path for path in FILES if path > prefix + start_after):
            if path.startswith(prefix) and "/" not in path[len(prefix) :] and path in FILES:
                yield FILES[path][0]

    async def get(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        return (await self.fetch(path, start, length))[1]

    async def fetch(
        self, path: str, start: int = 0, length: int | None = None
    ) -> tuple[FileMeta, bytes]:
        meta, data = self._find(path)
        return meta, data[start:] if length is None else data[start : start + length]

    async def get_many(self, paths: Sequence[str]) -> list[bytes]:
        return [self._find(path)[1] for path in paths]

    async def head(self, path: str) -> FileMeta:
        return self._find(path)[0]

    async def put(self, path: str, data: bytes, *, if_absent: bool = False) -> None:
        if if_absent and path in FILES:
            raise FileExistsAlreadyError(f"{path} exists already.")
        FILES[path] = FileMeta(path, len(data), time.time_ns() // 10**6), bytes(data)

    async def delete(self, path: str) -> None:
        FILES.pop(path, None)

    def open_input(self, path: str) -> BinaryIO:
        return io.BytesIO(self._find(path)[1])

    def _find(self, path: str) -> tuple[FileMeta, bytes]:
        if path not in FILES:
            raise FileMissingError(f"{path} does not exist.")
        return FILES[path]


@dataclass(frozen=True)
class BoxSettings:
    """What a client would connect with."""

    token: str = field(default="", repr=False)


class BoxStoreProvider:
    """Serves `box://`; its settings are the section `storage.stores.box`."""

    name, is_remote, settings_type = "box", True, BoxSettings

    @classmethod
    def read_settings(cls, config: Any) -> BoxSettings:
        section = None if config is None else (config.stores or {}).get("box")
        given = section.get_secret_value() if section else {}
        if unknown := set(given) - {"token"}:
            raise ConfigError(f"storage.stores.box has the unknown field {min(unknown)}.")
        return BoxSettings(**given)

    def __init__(self, settings: BoxSettings) -> None:
        self.reconfigure(settings)

    def reconfigure(self, settings: BoxSettings) -> None:
        self._settings = settings

    def locate(self, url: str, host: str, path: str) -> tuple[BoxStore, str]:
        return BoxStore(), f"{host}{unquote(path)}".rstrip("/")
