"""Saved offsets in a bucket: only one daemon writes them, and a replaced daemon cannot.

Each save creates a new file, `<pipeline>/<number>.json`, under an unused number; the greatest
number is current. A daemon that takes over the state rewrites a pipeline's offset under the next
number, with the token of its lease, before it uses it. A daemon that was suspended meanwhile then
finds its number in use. If that file was deleted since, the listing after the write shows a greater
number. The two newest files are kept.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from tailerd.changefeed.saved_offset import SavedOffset
from tailerd.errors import (
    AccessDeniedError,
    BugError,
    FileExistsAlreadyError,
    FileMissingError,
    OffsetError,
    StateInUseError,
    StorageError,
)
from tailerd.storage.base import FileMeta, ObjectStore
from tailerd.storage.lease import Lease

FORMAT = 1
"""Format of the envelope around the JSON of `SavedOffset`, which has its own format."""

_SUFFIX = ".json"
_KEPT = 2
_ATTEMPTS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """One file: the saved offset (None: only claimed), and the lease of its writer."""

    token: int
    holder: str
    saved: SavedOffset | None

    def to_json(self) -> bytes:
        saved = None if self.saved is None else json.loads(self.saved.to_json())
        fields = {"format": FORMAT, "token": self.token, "holder": self.holder, "saved": saved}
        return json.dumps(fields).encode() + b"\n"


class BucketOffsetStore:
    """The offsets below a folder of an object store.

    Args:
        store, folder: Where.
        lease: The acquired lease of the state; without it nothing can be saved, and `load` does not
            take over the pipeline.
    """

    def __init__(self, store: ObjectStore, folder: str, lease: Lease | None = None) -> None:
        self._store = store
        self._folder = folder
        self._lease = lease
        self._numbers: dict[str, int] = {}

    async def load(self, pipeline: str) -> SavedOffset | None:
        """Return the last saved offset, and take over the pipeline.

        Raises:
            OffsetError: It is damaged, or a newer release wrote it.
            StateInUseError: Another daemon has taken the state over.
            StorageError: The bucket cannot be read or written.
        """
        for _ in range(_ATTEMPTS):
            number, entry = await self._newest(pipeline)
            saved = None if entry is None else entry.saved
            if self._lease is None:
                return saved
            token = await self._token(self._lease, entry)
            if entry is not None and entry.token == token:
                self._numbers[pipeline] = number
                return saved
            mine = _Entry(token=token, holder=self._lease.holder_name, saved=saved)
            if await self._create(pipeline, number + 1, mine):
                return saved
        raise self._contended(pipeline)

    async def save(self, pipeline: str, saved: SavedOffset) -> None:
        """Create the pipeline's next file, and delete those no longer needed.

        Raises:
            StateInUseError: Another daemon has taken the state over; nothing was saved.
            StorageError: The bucket cannot be written.
        """
        if self._lease is None:
            raise BugError(f"The offset of {pipeline} was to be saved without holding the state.")
        for _ in range(_ATTEMPTS):
            number, entry = self._numbers.get(pipeline), None
            if number is None:
                number, entry = await self._newest(pipeline, is_replaced=True)
            token = await self._token(self._lease, entry)
            mine = _Entry(token=token, holder=self._lease.holder_name, saved=saved)
            if await self._create(pipeline, number + 1, mine):
                return
            # Taken by another daemon, or by a cancelled save of this one.
            self._numbers.pop(pipeline, None)
        raise self._contended(pipeline)

    async def _create(self, pipeline: str, number: int, entry: _Entry) -> bool:
        """Create a file and return True; False where its number was taken."""
        path = f"{self._folder}/{pipeline}/{number:020}{_SUFFIX}"
        try:
            await self._store.put(path, entry.to_json(), if_absent=True)
        except FileExistsAlreadyError:
            return False
        files = await self._files(pipeline)
        if any(_number(file) > number for file in files):
            # The number was free only because other daemons wrote newer files and pruned it.
            await self._store.delete(path)
            return False
        self._numbers[pipeline] = number
        for file in files:
            if _number(file) <= number - _KEPT:
                await self._forget(file)
        return True

    async def _forget(self, file: FileMeta) -> None:
        try:
            await self._store.delete(file.path)
        except AccessDeniedError:
            raise
        except StorageError:
            # The offset is saved: a failed cleanup must not cause redelivery. The next save
            # finds the file too.
            return

    async def _files(self, pipeline: str) -> list[FileMeta]:
        return [
            file
            async for file in self._store.list_from(f"{self._folder}/{pipeline}")
            if file.name.endswith(_SUFFIX) and file.name.removesuffix(_SUFFIX).isdecimal()
        ]

    async def _newest(
        self, pipeline: str, *, is_replaced: bool = False
    ) -> tuple[int, _Entry | None]:
        """Return the number and the content of the newest file; (0, None) if there is none.

        Args:
            is_replaced: Whether the content will be replaced, so that damage does not matter.
        """
        for _ in range(_ATTEMPTS):
            files = await self._files(pipeline)
            if not files:
                return 0, None
            newest = max(files, key=_number)
            try:
                body = await self._store.get(newest.path)
            except FileMissingError:
                # Another daemon saved twice since the listing.
                continue
            try:
                return _number(newest), _read(newest, body, pipeline)
            except OffsetError:
                if not is_replaced:
                    raise
                return _number(newest), None
        raise self._contended(pipeline)

    async def _token(self, lease: Lease, entry: _Entry | None = None) -> int:
        """Return the lease's token, unless another daemon has a greater one.

        Raises:
            StateInUseError: Another daemon has.
        """
        if lease.token is None:
            raise taken_over_by(await lease.newest_holder())
        # Of another daemon, or of an earlier lease whose file was deleted since.
        if entry is not None and entry.token > lease.token:
            is_mine = await lease.raise_token(entry.token)
            if not is_mine or lease.token is None:
                raise taken_over_by(entry.holder)
        return lease.token

    def _contended(self, pipeline: str) -> StateInUseError:
        return StateInUseError(
            f"The offset of {pipeline} in {self._folder} changes with every read, so"
            " another daemon writes it.",
            remedy="Run one daemon for one `state`.",
        )


def taken_over_by(holder: str) -> StateInUseError:
    """Return the error with which a daemon ends when another one has taken over its state."""
    return StateInUseError(
        f"The state of this daemon was taken over by {holder}, because its lease"
        " was not renewed in time. Its offsets are no longer valid.",
        remedy="Run one daemon for one `state`; start this one again when that one has ended.",
    )


def _number(file: FileMeta) -> int:
    return int(file.name.removesuffix(_SUFFIX))


def _read(file: FileMeta, body: bytes, pipeline: str) -> _Entry:
    place = f"The offset file s3://{file.path}"
    fix = (
        f"Reset it with `tailerd offsets reset {pipeline} --to ...`, or delete that file to use"
        " the previous one."
    )
    try:
        fields = json.loads(body)
        if fields["format"] != FORMAT:
            raise OffsetError(
                f"{place} has format {fields['format']!r}, this release reads {FORMAT}, because"
                " another tailerd wrote it.",
                remedy=f"Run that release. {fix}",
            )
        saved = fields["saved"]
        return _Entry(
            token=int(fields["token"]),
            holder=str(fields["holder"])[:200],
            saved=None
            if saved is None
            else SavedOffset.from_json(json.dumps(saved), place=place, fix=fix),
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise OffsetError(
            f"{place} is damaged: {error!r}. It may have been edited.", remedy=fix
        ) from error
