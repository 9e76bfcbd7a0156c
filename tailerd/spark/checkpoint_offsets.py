"""Where tables on the Spark engine stand, read from files while no query has to run."""

from __future__ import annotations

import json
from pathlib import Path

from tailerd.changefeed.offset import Offset
from tailerd.config import Config, TableConfig
from tailerd.errors import ConfigError
from tailerd.sinks.file.config import FileSinkConfig
from tailerd.spark.checkpoints import batch_end, logged_batches
from tailerd.spark.group.assignments import Assignments, group_kind


def shares_query(config: Config, table: TableConfig) -> bool:
    """Tell whether a table on the Spark engine is in a query with others."""
    if group_kind(table.sink) is None:
        return False
    # Only groups write to Kafka; a group may have one table.
    return config.spark.tables_per_query > 1 or not isinstance(table.sink, FileSinkConfig)


def spark_folder(config: Config) -> Path:
    """Return the folder of all streaming checkpoints."""
    return Path(config.state) / "spark"


def spark_checkpoint(config: Config, name: str) -> Path:
    """Return the folder of the streaming checkpoint that a table's offset is in.

    Raises:
        OffsetError, StorageError: The state folder cannot be read.
    """
    assignments = Assignments(spark_folder(config))
    found = assignments.find(name)
    return spark_folder(config) / name if found is None else assignments.folder(found.group)


def spark_offset(config: Config, name: str) -> Offset | None:
    """Return where a table goes on: behind the newest batch that is done; None before the first.

    Raises:
        OffsetError, StorageError: A checkpoint cannot be read.
    """
    assignments = Assignments(spark_folder(config))
    if assignments.find(name) is not None:
        return assignments.offset(name)
    return delivered_until(spark_folder(config) / name)


def delivered_until(checkpoint: Path) -> Offset | None:
    """Return the end of the newest batch of a query of one table that is done; None before it.

    Raises:
        OffsetError: The checkpoint cannot be read.
    """
    done = logged_batches(checkpoint).committed
    return None if done is None else Offset.from_json(json.dumps(batch_end(checkpoint, done)))


def reset_shared(config: Config, name: str, offset: Offset) -> None:
    """Let a table that shares a query, and does not run, begin elsewhere.

    Raises:
        OffsetError, StorageError: The state folder cannot be read or written.
    """
    table = config.tables[name]
    assignments = Assignments(spark_folder(config))
    kind, most = group_kind(table.sink) or "", config.spark.tables_per_query
    assignments.assign(name, kind, {}, most)
    assignments.begin_at(name, offset)


def check_not_shared(state: Path, name: str) -> None:
    """Make sure that a table with a query of its own has no offset elsewhere.

    Raises:
        ConfigError: It was in a group, whose checkpoint says where it stands.
    """
    found = Assignments(state / "spark").find(name)
    if found is not None:
        raise ConfigError(
            f"Where {name} stands is in the checkpoint of {found.group}, a query of several tables,"
            " which a query of its own cannot read.",
            remedy="Set its sink and spark.tables_per_query as they were, or give it another name,"
            " with `from` set to its start.",
        )
