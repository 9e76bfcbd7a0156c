"""A short name for a schema, to tell two histories of one table apart."""

from __future__ import annotations

import functools
import hashlib
import json

from tailerd.formats.delta.protocol.data_file import TableSchema


@functools.lru_cache(maxsize=1024)
def schema_id(schema: TableSchema) -> str:
    """Return a hash of `schemaString` and the partition columns.

    The order of keys in the text does not count: a checkpoint may spell a schema in another order
    than the commit it comes from.
    """
    try:
        text = json.dumps(json.loads(schema.text), sort_keys=True)
    except (ValueError, RecursionError):
        # Whoever reads rows says what is wrong with it.
        text = schema.text
    content = json.dumps([text, list(schema.partition_columns)])
    return hashlib.sha256(content.encode()).hexdigest()[:32]
