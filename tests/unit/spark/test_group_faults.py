"""Random faults against a group's source: what is lost or doubled, without a Spark to wait for.

Spark is a few lines here: it logs an end, asks for the rows, gives them to a sink that keeps them
by batch, and notes the batch as done; whatever is interrupted is done again from its log. So every
order of faults can be had, thousands in a minute.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from unittest.mock import patch

from tailerd.changefeed.limits import ReadLimit
from tailerd.config import TableConfig
from tailerd.config.sections import read_sink
from tailerd.errors import MissingDataFileError, TailerdError
from tailerd.spark.encoded_records import VALUE
from tailerd.spark.group.follower import GroupFollower
from tailerd.spark.group.group_offset import GroupOffset
from tailerd.spark.group.members import GroupTable, Members
from tailerd.spark.group.quarantine import held_back, read_holds, write_holds
from tailerd.spark.group.record_partitions import pack_tables, read_records
from tailerd.storage.stores import Stores
from tests.tables.builder import TableBuilder

NAMES = ("a", "b", "c")
DEFAULT_SEEDS = 10


class Model:
    """Spark, the daemon and the sink around one group."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.folder = folder / "group"
        self.folder.mkdir()
        self.tables = {name: TableBuilder(folder / name) for name in NAMES}
        self.commits = dict.fromkeys(NAMES, 0)
        self.members: dict[str, GroupTable] = {}
        self.leaving: dict[str, GroupTable] = {}
        self.number = 0
        self.log: list[GroupOffset] = [GroupOffset()]
        self.is_done = True
        self.sink: dict[int, dict[str, list[str]]] = {}
        self.broken: set[str] = set()
        self.follower: GroupFollower | None = None
        for name in NAMES:
            self.append(name)

    def append(self, name: str) -> None:
        self.tables[name].append([{"id": self.commits[name]}])
        self.commits[name] += 1

    def join(self, name: str) -> None:
        config = TableConfig.model_validate(
            {
                "path": str(self.tables[name].folder),
                "from": "0",
                "max_files_per_batch": self.random.choice([1, 2, 1000]),
                "sink": read_sink("sink", {"kind": "file", "path": f"/out/{name}"}),
            }
        )
        self.members[name] = GroupTable(name=name, config=config)
        self.leaving.pop(name, None)
        self.write_members()

    def leave(self, name: str) -> None:
        self.leaving[name] = self.members.pop(name).leaving()
        self.write_members()

    def write_members(self) -> None:
        self.number += 1
        tables = (*self.members.values(), *self.leaving.values())
        Members(number=self.number, tables=tables).write(self.folder)

    async def crash(self) -> None:
        if self.follower is not None:
            await self.follower.aclose()
            self.follower = None

    async def batch(self) -> bool:
        """Do one batch, or what is left of one; False when nothing is new."""
        follower = self.follower = self.follower or GroupFollower(self.folder)
        if self.is_done:
            end = await follower.latest(self.log[-1])
            if end is self.log[-1]:
                return False
            # What Spark logs is text.
            self.log.append(GroupOffset.of(end.fields()))
            self.is_done = False
        if self.random.random() < 0.1:
            await self.crash()
            return True
        try:
            await self._deliver(follower)
        except TailerdError as error:
            self._hold(error)
            await self.crash()
            return True
        if self.random.random() < 0.1:
            await self.crash()
            return True
        self.is_done = True
        await follower.commit(self.log[-1])
        return True

    async def _deliver(self, follower: GroupFollower) -> None:
        start, end = self.log[-2:]
        given: dict[str, list[str]] = {}
        self.sink[end.number] = given
        for partition in pack_tables(await follower.rows(start, end)):
            for part in partition.parts:
                name = part.rows.name
                if name in self.broken:
                    raise MissingDataFileError("It is gone.", table=name)
            for piece in read_records(partition, Stores()):
                values = piece.records[VALUE].to_pylist()
                given.setdefault(piece.table, []).extend(value.decode() for value in values)
        if self.random.random() < 0.5:
            # Spark asks again for the rows of a batch that it has.
            assert pack_tables(await follower.rows(start, end)) is not None

    def _hold(self, error: TailerdError) -> None:
        assert error.table
        held = held_back(
            read_holds(self.folder), self.log[-1], error.table, attempt=1, retry_at=0.0
        )
        write_holds(self.folder, held)

    def ids(self, name: str) -> list[int]:
        """The rows of a table in the order of their delivery."""
        lines = [line for number in sorted(self.sink) for line in self.sink[number].get(name, [])]
        return [int(line.split(":")[1].split(",")[0]) for line in lines]

    async def any_step(self) -> None:
        name = self.random.choice(NAMES)
        match self.random.randrange(8):
            case 0 | 1:
                self.append(name)
            case 2 if name in self.members:
                self.leave(name)
            case 3 if name not in self.members:
                self.join(name)
            case 4:
                self.broken ^= {name}
            case 5:
                await self.crash()
            case _:
                await self.batch()


async def _live(folder: Path, seed: int, steps: int) -> Model:
    model = Model(folder, seed)
    model.join("a")
    with patch("tailerd.spark.group.follower.WAIT_SECONDS", 0.0):
        for _ in range(steps):
            await model.any_step()
        model.broken.clear()
        for name in NAMES:
            if name not in model.members:
                model.join(name)
        # Tables that were in problem are tried by whoever starts anew.
        await model.crash()
        for _ in range(100):
            if not await model.batch():
                break
        await model.crash()
    return model


def test_whatever_happens_each_row_is_delivered_once_in_order(tmp_path: Path, seed: int) -> None:
    model = asyncio.run(_live(tmp_path, seed, steps=60))
    for name in NAMES:
        assert model.ids(name) == list(range(model.commits[name])), name


def test_a_large_backlog_does_not_keep_the_others_waiting(tmp_path: Path) -> None:
    async def scenario() -> None:
        model = Model(tmp_path, seed=1)
        for _ in range(30):
            model.append("a")
        for name in NAMES:
            model.join(name)
        limit = "tailerd.spark.group.follower.BATCH_LIMIT"
        with (
            patch(limit, ReadLimit(max_files=6)),
            patch("tailerd.spark.group.follower.WAIT_SECONDS", 0.0),
        ):
            follower = GroupFollower(model.folder)
            end = await follower.latest(GroupOffset())
            assert set(end.begins) == set(NAMES)
            assert 1 <= end.tables["a"].offset.version <= 2
            await follower.aclose()

    asyncio.run(scenario())
