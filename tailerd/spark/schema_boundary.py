"""Finds where a stream's schema ends: the first rows that do not fit the schema of its query.

A query has one schema. Rows of versions up to the one it was taken from may lack columns or be
narrower: those become null or are widened. Rows of later versions must have the same columns and
types, otherwise the micro-batch ends before them, and the query resumes after a restart.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import pyarrow as pa
from pyspark.sql.types import StructType

from tailerd.changefeed.change_batch import with_change_columns
from tailerd.changefeed.offset import Offset, Version
from tailerd.errors import SchemaChangedError, TableError
from tailerd.formats.base import ChangeSource, SchemaStep
from tailerd.spark.arrow_schema import conform, declared_schema, spark_schema

LOOK_AHEAD_VERSIONS = 1000
"""How many versions after a boundary are searched for the newest schema that its rows fit."""


class SchemaBoundary:
    """Compares rows' schemas with the schema a query has.

    Args:
        schema: The schema of the query.
        version: The version it was taken from; None for a user-defined schema, which all rows fit
            that can be cast to it.
    """

    def __init__(self, schema: StructType, version: Version | None) -> None:
        self._types = {field.name: field.dataType for field in schema}
        self._target = declared_schema(schema)
        self._version = version
        self._misfits: dict[bytes, str] = {}
        self._same: dict[bytes, bool] = {}

    async def reach(self, source: ChangeSource, start: Offset, end: Offset) -> Offset:
        """Return `end`, or the place before it where the schema ends.

        Raises:
            SchemaChangedError: The schema ends at `start`.
            TableError: A commit cannot be read correctly.
        """
        async for step in source.schema_steps(start, end):
            if not self._fits(step):
                if not start.is_before(step.offset):
                    raise await self._changed(source, step)
                return step.offset
        return end

    async def require(
        self, source: ChangeSource, start: Offset, end: Offset, planned_with: int | None
    ) -> None:
        """Check a micro-batch that was planned before, perhaps for a query with another schema.

        Args:
            planned_with: The version of that schema.

        Raises:
            SchemaChangedError: Rows between the two do not fit this query's schema.
        """
        async for step in source.schema_steps(start, end):
            if self._misfit(step.schema):
                raise await self._changed(source, step, planned_with)

    def _fits(self, step: SchemaStep) -> bool:
        if self._version is None or step.version <= self._version:
            return not self._misfit(step.schema)
        key = _key(step.schema)
        if key not in self._same:
            fields = spark_schema(step.schema).fields
            self._same[key] = self._types == {f.name: f.dataType for f in fields}
        return self._same[key]

    def _misfit(self, schema: pa.Schema) -> str:
        key = _key(schema)
        if key not in self._misfits:
            self._misfits[key] = misfit(schema, self._target, may_drop=self._version is None)
        return self._misfits[key]

    async def _changed(
        self, source: ChangeSource, step: SchemaStep, planned_with: int | None = None
    ) -> SchemaChangedError:
        detail = self._misfit(step.schema) or self._difference(step.schema)
        problem = f"Version {step.offset.version} has another schema than this query. {detail}"
        if self._version is None:
            return SchemaChangedError(
                problem,
                version=step.offset.version,
                remedy=(
                    "Start the query again from its checkpoint to take the newest types, with"
                    " .schema(...) types that hold both, or leave the column out."
                ),
            )
        version = planned_with
        if version is None or version == self._version:
            version = await _newest_fitting(source, step)
        changed = SchemaChangedError(
            problem,
            version=step.offset.version,
            remedy=(
                "All rows before it are delivered. Start the query again from its checkpoint with"
                f' .option("schemaVersion", {version}): it continues there with the new schema.'
            ),
        )
        changed.schema_version = version
        return changed

    def _difference(self, schema: pa.Schema) -> str:
        rows = {f.name: f.dataType for f in spark_schema(schema).fields}
        said = [f"{name} no longer exists" for name in self._types if name not in rows]
        said += [
            f"{name} is {kind.simpleString()} there and {self._types[name].simpleString()} here"
            for name, kind in rows.items()
            if name in self._types and self._types[name] != kind
        ]
        return f"The column {', the column '.join(said)}."


def _key(schema: pa.Schema) -> bytes:
    """Return the identity of a schema; `==` would ignore the metadata of its fields."""
    return bytes(schema.serialize())


def misfit(schema: pa.Schema, target: pa.Schema, *, may_drop: bool) -> str:
    """Return why rows of a schema do not fit `target`; empty if they do."""
    rows = with_change_columns(schema)
    if may_drop:
        rows = pa.schema([field for field in rows if field.name in target.names])
    try:
        conform(pa.RecordBatch.from_pylist([], schema=rows), target, may_drop=may_drop)
    except SchemaChangedError as error:
        return error.message
    return ""


async def _newest_fitting(source: ChangeSource, first: SchemaStep) -> Version:
    """Return the newest version whose schema all rows from `first` up to it fit."""
    steps = [first]
    version = first.offset.version
    for _ in range(LOOK_AHEAD_VERSIONS):
        version = source.next_version(version)
    end = Offset(table_id=first.offset.table_id, version=version)
    # A later commit that cannot be read is reported when the stream reaches it.
    with suppress(TableError):
        async for step in source.schema_steps(first.offset, end):
            steps.append(step)
    return next(step.version for step in reversed(steps) if _holds(step, steps))


def _holds(step: SchemaStep, steps: Sequence[SchemaStep]) -> bool:
    target = declared_schema(spark_schema(step.schema))
    before = steps[: steps.index(step)]
    return not any(misfit(each.schema, target, may_drop=False) for each in before)
