"""Opens files in sequence, with the next ones prefetched if opening is slow."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from types import TracebackType
from typing import BinaryIO, Self

from tailerd.storage.base import PendingInput
from tailerd.storage.stores import Stores

AT_ONCE = 16


class FilesAhead:
    """Opens files in the given order; prefetches not used are cancelled at the end of the `with`.

    Memory: `AT_ONCE` times the bytes that a store fetches to open a file.
    """

    def __init__(self, urls: Iterable[str], stores: Stores) -> None:
        """Initialize. No file is requested before the first is opened."""
        self._stores = stores
        self._local = stores.local
        self._left = deque(urls)
        self._begun: deque[tuple[str, PendingInput | None]] = deque()

    def open(self, url: str) -> BinaryIO:
        """Open a file, as `Stores.open_data_file`.

        Raises:
            ConfigError, StorageError: It cannot be opened.
        """
        while self._left and len(self._begun) < AT_ONCE:
            following = self._left.popleft()
            pending = None
            if not following.startswith("/"):
                pending = self._stores.begin_data_file(following)
            self._begun.append((following, pending))
        while self._begun:
            begun, pending = self._begun.popleft()
            if begun == url:
                return self.open_unplanned(url) if pending is None else pending.open()
            if pending is not None:
                # Skipped.
                pending.cancel()
        return self.open_unplanned(url)

    def open_unplanned(self, url: str) -> BinaryIO:
        """Open a file outside the order, such as one of deletion vectors; prefetches continue.

        Raises:
            ConfigError, StorageError: It cannot be opened.
        """
        # Nearly all: nothing has to be looked up.
        if url.startswith("/"):
            return self._local.open_input(url)
        return self._stores.open_data_file(url)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for _, pending in self._begun:
            if pending is not None:
                pending.cancel()
        self._begun.clear()
