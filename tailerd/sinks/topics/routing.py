"""Choose the topic and headers of each record of a table. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.errors import ConfigError, SinkRefusedError
from tailerd.records.base import Records
from tailerd.records.json_text import timestamp_text
from tailerd.sinks.topics.templates import TABLE_NAMES, TopicTemplate, filled_text

_MOST_TOPICS = 1000
"""Maximum for one batch: a column with more values is not meant to choose topics."""


class TopicRouter:
    """Chooses topics and headers of the records of one table."""

    def __init__(self, template: TopicTemplate, table: str, headers: Mapping[str, str]) -> None:
        """Initialize.

        Args:
            template: Template of the topic's name.
            table: The configured name of the table.
            headers: Headers of every record, by name; may contain `HEADER_PLACEHOLDERS`.
        """
        self._table = table
        self._template = template
        self._headers = dict(headers)

    def fixed_topic(self) -> str | None:
        """Return the only topic of the table; None if a column chooses the topic."""
        return None if self._template.column else self._template.topic(self._table)

    def headers_of(self, batch: ChangeBatch) -> dict[str, str]:
        """Return the headers of the records of a batch, by name."""
        if not self._headers:
            return {}
        values = {
            **dict.fromkeys(TABLE_NAMES, self._table),
            "commit_version": str(batch.version),
            "commit_timestamp": timestamp_text(batch.timestamp_us),
            "change_source": batch.change_source.value,
        }
        return {name: filled_text(text, values) for name, text in self._headers.items()}

    def by_topic(self, batch: ChangeBatch, records: Records) -> Iterator[tuple[str, Records]]:
        """Yield each topic with its records, in their order.

        Raises:
            ConfigError: The column is missing, or cannot be converted to text.
            SinkRefusedError: A value is null, or not valid in a topic's name.
        """
        if self._template.column is None:
            yield self._template.topic(self._table), records
            return
        column = records.of_rows(column_of(batch, self._template.column, "topic"))
        values = _texts(column, self._template.column)
        coded = pc.dictionary_encode(values, null_encoding="encode")
        if len(coded.dictionary) > _MOST_TOPICS:
            raise ConfigError(
                f"The column {self._template.column!r} chooses among more than {_MOST_TOPICS}"
                " topics in one batch.",
                remedy="Choose the topic by a column with few values.",
            )
        codes = coded.indices.to_numpy(zero_copy_only=False)
        for code, value in enumerate(coded.dictionary.to_pylist()):
            yield self._topic_of(value), records.take(np.flatnonzero(codes == code))

    def _topic_of(self, value: str | None) -> str:
        if value is None:
            raise SinkRefusedError(
                f"A row has no value in the column {self._template.column!r}, which chooses its"
                " topic.",
                remedy="Fill the column, or name one topic.",
            )
        try:
            return self._template.topic(self._table, value)
        except ValueError as error:
            raise SinkRefusedError(
                f"A value of the column {self._template.column!r} does not choose a topic:"
                f" {error}.",
                remedy="Choose the topic by another column, or name one topic.",
            ) from error


def column_of(batch: ChangeBatch, name: str, chooses: str) -> pa.Array:
    """Return the column that chooses each row's topic or partition; `chooses` is for the error.

    Raises:
        ConfigError: The table has no such column.
    """
    index = batch.rows.schema.get_field_index(name)
    if index < 0:
        raise ConfigError(
            f"The column {name!r}, which chooses the {chooses}, is not in the table.",
            remedy=f"Its columns are: {', '.join(batch.rows.schema.names)}.",
        )
    return batch.rows.column(index)


def _texts(values: pa.Array, name: str) -> pa.Array:
    try:
        return values.cast(pa.string())
    except pa.ArrowException:
        # Arrow's message may contain values.
        is_bytes = pa.types.is_binary(values.type)
        why = "it has bytes that are not text" if is_bytes else f"its type is {values.type}"
        raise ConfigError(
            f"The column {name!r} cannot choose the topic, because {why}.",
            remedy="Choose the topic by a column of texts or numbers, or name one topic.",
        ) from None
