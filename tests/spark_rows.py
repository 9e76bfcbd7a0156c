"""Rows that came back from Spark, as the encoders know them."""

from __future__ import annotations

import pyarrow as pa
from pyarrow import types

from tailerd.changefeed.change_batch import VARIANT_FIELD
from tailerd.spark.arrow_schema import _VARIANT, _is_spark_variant, conform_array


def variants_marked(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch that came from Spark with its variants marked as the encoders know them."""
    given = list(batch.schema)
    fields = [_with_marks(field) for field in given]
    if all(marked is field for marked, field in zip(fields, given, strict=True)):
        return batch
    arrays = [
        conform_array(array, field.type, field.name)
        for array, field in zip(batch.columns, fields, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _with_marks(field: pa.Field) -> pa.Field:
    """Return `field` itself where there is no variant in it."""
    kind = field.type
    if _is_spark_variant(kind):
        return field.with_type(_VARIANT).with_metadata(VARIANT_FIELD)
    if types.is_struct(kind):
        old = list(kind)
    elif types.is_map(kind):
        old = [kind.key_field, kind.item_field]
    elif types.is_list(kind):
        old = [kind.value_field]
    else:
        return field
    new = [_with_marks(child) for child in old]
    if all(after is before for after, before in zip(new, old, strict=True)):
        return field
    if types.is_struct(kind):
        return field.with_type(pa.struct(new))
    return field.with_type(pa.map_(*new) if types.is_map(kind) else pa.list_(*new))
