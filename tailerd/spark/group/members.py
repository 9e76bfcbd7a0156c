"""The tables of a group, as the daemon writes them down and the source reads them.

The source looks at this file between two batches: when it has reported a number of it, no batch
runs that another number decided about.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from pydantic import ValidationError

from tailerd.changefeed.limits import ReadLimit
from tailerd.changefeed.offset import Offset
from tailerd.config import TableConfig
from tailerd.config.explain import explain
from tailerd.config.sections import read_sink
from tailerd.errors import ConfigError, OffsetError
from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.spark.durable import read_document, write_durably

MEMBERS_FILE = "members.json"

_NOT_FOR_SOURCES = {"producer", "heartbeat_interval"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTable:
    """One table of a group.

    Attributes:
        name: The configured name.
        config: Its section; of the sink without what only producers need.
        generation: Which life of the table in this group this is.
        begin: Where this life begins; None where the section says it.
        is_leaving: It is planned no more, but a batch that Spark repeats may still have its rows.
        joined: The first number of the file that names it since it joined last: what was wrong with
            it before is nothing to go by.
    """

    name: str
    config: TableConfig
    generation: int = 1
    begin: Offset | None = None
    is_leaving: bool = False
    joined: int = 0

    @property
    def limit(self) -> ReadLimit:
        """How much of it one batch may admit."""
        return ReadLimit(
            max_files=self.config.max_files_per_batch, max_bytes=self.config.max_bytes_per_batch
        )

    @property
    def kafka(self) -> KafkaSinkConfig | None:
        """The sink's section where it is Kafka."""
        return self.config.sink if isinstance(self.config.sink, KafkaSinkConfig) else None

    def leaving(self) -> GroupTable:
        """Return it as one that is planned no more."""
        return replace(self, is_leaving=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """The content of the file.

    Attributes:
        number: Tells one from the next.
        tables: Those that this release can read.
        unreadable: The others, and why; nothing is lost by that unless a batch has their rows.
    """

    number: int = 0
    tables: tuple[GroupTable, ...] = ()
    unreadable: Mapping[str, ConfigError] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Replace the file; blocking.

        Raises:
            StorageError: The folder cannot be written.
        """
        document = {"number": self.number, "tables": [_fields(each) for each in self.tables]}
        write_durably(folder / MEMBERS_FILE, document)

    @classmethod
    def read(cls, folder: Path) -> Members:
        """Read the file; nobody where there is none.

        Raises:
            OffsetError: It is damaged.
            StorageError: It cannot be read.
        """
        path = folder / MEMBERS_FILE
        document = read_document(path)
        tables: list[GroupTable] = []
        unreadable: dict[str, ConfigError] = {}
        try:
            for each in cast("Iterable[dict[str, object]]", document.get("tables", ())):
                name = str(each["name"])
                try:
                    tables.append(_table(each))
                except (ValidationError, ConfigError) as error:
                    unreadable[name] = _unreadable(name, path, error)
            number = int(str(document.get("number", 0)))
        except (KeyError, TypeError, ValueError) as error:
            raise OffsetError(
                f"{path} is damaged: {error!r}.", remedy="Restore the state folder from a copy."
            ) from error
        return cls(number=number, tables=tuple(tables), unreadable=unreadable)


def _fields(table: GroupTable) -> dict[str, object]:
    section = table.config.model_dump(
        mode="json", by_alias=True, exclude_unset=True, exclude={"maintenance": True, "sink": True}
    )
    if table.config.poll_interval is not None:
        section["poll_interval"] = f"{table.config.poll_interval}s"
    # What reaches the brokers is the sink's; passwords are not written to the state folder.
    sink = table.config.sink.model_dump(
        mode="json", by_alias=True, exclude_unset=True, exclude=_NOT_FOR_SOURCES
    )
    return {
        "name": table.name,
        "config": {**section, "sink": sink},
        "generation": table.generation,
        "begin": None if table.begin is None else table.begin.to_json(),
        "is_leaving": table.is_leaving,
        "joined": table.joined,
    }


def _unreadable(name: str, path: Path, error: ValidationError | ConfigError) -> ConfigError:
    why = explain(error, TableConfig) if isinstance(error, ValidationError) else error.message
    return ConfigError(
        f"The section of {name} in {path} does not fit this release: {why}",
        remedy=f"Run the release that wrote it, or let {name} run again until its batch is done.",
    )


def _table(fields: dict[str, object]) -> GroupTable:
    section = cast("dict[str, object]", fields["config"])
    sink = cast("dict[str, object]", section["sink"])
    begin = fields["begin"]
    return GroupTable(
        name=str(fields["name"]),
        config=TableConfig.model_validate({**section, "sink": read_sink("sink", sink)}),
        generation=cast(int, fields["generation"]),
        begin=Offset.from_json(begin) if isinstance(begin, str) else None,
        is_leaving=bool(fields["is_leaving"]),
        joined=int(str(fields.get("joined", 0))),
    )
