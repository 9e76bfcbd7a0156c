"""Names of pipelines: that of the table, or `TABLE/SINK` where a table has several sinks."""

from __future__ import annotations

from urllib.parse import quote, unquote


def table_of(pipeline: str) -> str:
    """Return the name of a pipeline's table: all before the first slash."""
    return pipeline.partition("/")[0]


def is_named(pipeline: str, name: str) -> bool:
    """Return whether a name is that of a pipeline, or of its table."""
    return name in (pipeline, table_of(pipeline))


def file_name(pipeline: str) -> str:
    """Return the name of a pipeline as that of a file, or as a part of a URL."""
    return quote(pipeline, safe="")


def pipeline_of(file: str) -> str:
    """Return the name of the pipeline whose `file_name` is `file`."""
    return unquote(file)
