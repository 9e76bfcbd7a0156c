"""Files opened one after the other, the next ones under way where opening takes its time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from types import TracebackType
from typing import BinaryIO, Self

from tailerd.storage.base import PendingInput
from tailerd.storage.stores import Stores

AT_ONCE = 16


class FilesAhead:
    """Opens files in the order they were named; what was not opened is given up with the `with`.

    Memory: what a store fetches to open a file, `AT_ONCE` times.
    """

    def __init__(self, urls: Iterable[str], stores: Stores) -> None:
        """Return which files; none is asked for before the first is opened."""
        self._stores = stores
        self._left = deque(urls)
        self._begun: deque[tuple[str, PendingInput | None]] = deque()

    def open(self, url: str) -> BinaryIO:
        """Open a file, as `Stores.open_data_file`.

        Raises:
            ConfigError, StorageError: It cannot be opened.
        """
        while self._left and len(self._begun) < AT_ONCE:
            following = self._left.popleft()
            self._begun.append((following, self._stores.begin_data_file(following)))
        while self._begun:
            begun, pending = self._begun.popleft()
            if begun == url:
                return self.open_beside(url) if pending is None else pending.open()
            if pending is not None:
                # Passed over.
                pending.cancel()
        return self.open_beside(url)

    def open_beside(self, url: str) -> BinaryIO:
        """Open a file that was not named, such as one of deletion vectors; the others go on.

        Raises:
            ConfigError, StorageError: It cannot be opened.
        """
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
