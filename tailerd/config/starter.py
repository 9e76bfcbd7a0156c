"""The configuration that `tailerd init` writes: short, commented, and accepted by `run`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StarterTable:
    """A table that the configuration delivers.

    Attributes:
        name, path, format: As in `tables`.
        columns: Names of its columns, for the comment and the choice of a key.
        rows: Number of its rows; None if unknown.
        version: Its latest version.
        has_checkpoints: Whether tailerd can write checkpoints of its log.
    """

    name: str
    path: str
    format: str
    columns: Sequence[str]
    rows: int | None = None
    version: int | None = None
    has_checkpoints: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StarterSink:
    """The sink of all tables.

    Attributes:
        kind: `file`, `kafka`, `postgres`, `http` or `console`.
        folder: For `file`: contains one folder per table; a URL is that of a bucket.
        bootstrap_servers, topic, key, value_format: For `kafka`; `{table}` in the topic is the
            table's name. `key` is used for tables that have all its columns, also for `postgres`
            and `http`.
        url: For `http`: where events are posted.
        dsn: For `postgres`: the URL of the database.
    """

    kind: str
    folder: str = "./changes"
    bootstrap_servers: Sequence[str] = ("127.0.0.1:9092",)
    topic: str = "{table}.changes"
    key: Sequence[str] = ()
    value_format: str = "debezium"
    url: str = "http://127.0.0.1:8088/hook"
    dsn: str = ""


def starter(
    tables: Sequence[StarterTable], sink: StarterSink, *, engine: str, location: str
) -> str:
    """Return the text of a configuration file.

    Args:
        tables: At least one; names are unique.
        engine: `arrow` or `spark`.
        location: Location that was searched, for the comment.
    """
    lines = [
        f"# {len(tables)} table{'s' * (len(tables) > 1)} found by `tailerd init` in"
        f" {_comment(location)}.",
        "# Check this file with `tailerd doctor FILE`, run it with `tailerd run --config FILE`.",
        "# All fields: `tailerd help configuration`.",
        "",
        f"engine: {engine:<22}# arrow: in this process; spark: needs Java 17 or newer",
        "state: ./tailerd-state       # saved offsets; one daemon at a time",
        "http:",
        "  listen: 127.0.0.1:9464     # web page, /metrics, `tailerd status`; port 0: any free one",
        "",
        "tables:",
    ]
    for table in tables:
        lines += [f"  {line}".rstrip() for line in _table(table, sink)]
    return "\n".join(lines) + "\n"


def _table(table: StarterTable, sink: StarterSink) -> Iterator[str]:
    about = [table.format]
    if table.version is not None:
        about.append(f"version {table.version}")
    if table.rows is not None:
        about.append(f"{table.rows:,} rows")
    yield f"{_text(table.name)}:"
    yield f"  path: {_text(table.path)}    # {', '.join(about)}"
    yield "  from: snapshot             # all rows first, then changes; latest: changes only"
    yield "  sink:"
    yield from (f"    {line}" for line in _sink(table, sink))
    yield "  # on_gap: snapshot         # if versions were removed before delivery: start over"
    if table.has_checkpoints:
        yield "  # maintenance: {checkpoint: {every_commits: 10}}    # write checkpoints of the log"


def _sink(table: StarterTable, sink: StarterSink) -> Iterator[str]:
    yield f"kind: {sink.kind}"
    if sink.kind == "file":
        folder = sink.folder.rstrip("/")
        yield f"path: {_text(f'{folder}/{table.name}')}"
        if "://" in folder:
            yield "format: parquet          # or jsonl"
            yield "# partition_by: [date(COLUMN)]    # Hive partitions"
        else:
            yield "format: jsonl            # or parquet"
    if sink.kind == "kafka":
        yield f"bootstrap_servers: {json.dumps(list(sink.bootstrap_servers))}"
        yield f"topic: {_text(sink.topic.replace('{table}', table.name))}"
        yield _commented_key(table, sink)
        yield f"format: {sink.value_format:<17}# or json"
        yield "delivery: exactly-once   # read with isolation.level=read_committed"
        yield "create_topic: {partitions: 4}"
    if sink.kind == "http":
        yield f"url: {_text(sink.url)}"
        yield _commented_key(table, sink)
        yield "format: cloudevents      # or json, debezium"
        yield "batch: {max_events: 100}"
        yield "# hmac_key: ${file:/run/secrets/hook}    # signs requests"
    if sink.kind == "postgres":
        yield f"dsn: {_text(sink.dsn)}"
        yield "# password: a file or a variable, see `tailerd help postgres`; default: ~/.pgpass"
        target = json.dumps(table.name, ensure_ascii=False)
        yield f"table: {_text('public.' + target if '.' in table.name else table.name)}"
        if _has_key(table, sink):
            yield "mode: upsert             # a row for each key; append: a log of all changes"
        else:
            yield "mode: append             # a log of all changes; upsert, with a key: a mirror"
        yield _commented_key(table, sink)


def _has_key(table: StarterTable, sink: StarterSink) -> bool:
    return bool(sink.key) and set(sink.key) <= set(table.columns)


def _commented_key(table: StarterTable, sink: StarterSink) -> str:
    """Return the line with the columns of the key; a comment if the table does not have them."""
    columns = ", ".join(_comment(name) for name in list(table.columns)[:8])
    has_key = _has_key(table, sink)
    key = json.dumps(list(sink.key if has_key else table.columns[:1]))
    mark = "" if has_key else "# "
    return f"{mark}key: {key}    # columns that identify a row; of: {columns}"


def _text(text: str) -> str:
    """Return text as a YAML value, quoted unless it has no special characters."""
    plain = text.isascii() and text.replace("/", "").replace("-", "").replace("_", "")
    if plain and plain.replace(".", "").replace("://", "").isalnum() and text[0].isalpha():
        return text
    if plain and plain.replace(".", "").isalnum() and text[0] in "/." and text not in (".", "~"):
        return text
    return json.dumps(text)


def _comment(text: str) -> str:
    """Return text on one line, for a comment."""
    return " ".join(text.split())
