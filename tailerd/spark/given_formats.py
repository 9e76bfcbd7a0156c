"""Value formats with the ids of their schemas: asked for by the driver, given to tasks as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from tailerd.changefeed.change_task import ChangeTask
from tailerd.errors import BugError
from tailerd.formats.detect import reader_of
from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.sinks.kafka.destinations import Placed, TableSchemas


class GivenFormats:
    """What makes the records of one table in one batch. Picklable; asks nobody."""

    def __init__(self, formats: Mapping[tuple[str, bytes], Placed]) -> None:
        self._formats = formats

    def of_rows(self, table_id: str, schema: pa.Schema) -> Placed:
        """Return where rows with a schema go, and what makes their records.

        Raises:
            BugError: The driver knew of no such rows.
        """
        found = self._formats.get((table_id, _key(schema)))
        if found is None:
            raise BugError(f"Rows came with a schema that was not planned: {schema.names}.")
        return found


class DriverFormats:
    """Asks a registry for the schemas of one table's tasks; remembers them between batches."""

    def __init__(self, config: KafkaSinkConfig, table: str) -> None:
        """Prepare; nothing is asked yet.

        Args:
            config: The sink's section, with a registry.
            table: The configured name.
        """
        self._schemas = TableSchemas(config, table)

    def of_tasks(self, tasks: Sequence[ChangeTask], table_id: str) -> GivenFormats:
        """Return the formats of all rows of tasks, in their order; blocking.

        Args:
            tasks: Of one batch.
            table_id: Of tasks that say none.

        Raises:
            TailerdError: The registry cannot be asked, or refuses.
        """
        formats: dict[tuple[str, bytes], Placed] = {}
        former = ""
        latest: pa.Schema | None = None
        for task in tasks:
            schema, own = reader_of(task).schema(task), task.table_id or table_id
            is_alike = latest is not None and latest.equals(schema, check_metadata=True)
            if is_alike and own == former:
                continue
            former, latest = own, schema
            formats[own, _key(schema)] = self._schemas.of_table(own).prepared(schema)
        return GivenFormats(formats)


def _key(schema: pa.Schema) -> bytes:
    """Return what tells schemas apart: comparing them leaves their metadata out."""
    return bytes(schema.serialize())
