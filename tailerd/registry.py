"""The registry of parts by kind; each is loaded on first use.

A built-in part is one line here. Another distribution adds a part through an entry point of the
kind's group, with the part's name (of a store: the URL scheme) and a value as in the tables here.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterable, Mapping
from importlib import import_module
from importlib.metadata import EntryPoints, entry_points

from tailerd.errors import BugError, ConfigError, MissingExtraError

FORMATS_GROUP = "tailerd.formats"
SINKS_GROUP = "tailerd.sinks"
STORES_GROUP = "tailerd.stores"
VALUE_FORMATS_GROUP = "tailerd.value_formats"

FORMATS: dict[str, str] = {
    "delta": "tailerd.formats.delta.format:DeltaFormat",
    "iceberg": "tailerd.formats.iceberg.format:IcebergFormat",
    "kartothek": "tailerd.formats.kartothek.format:KartothekFormat",
    "lance": "tailerd.formats.lance.format:LanceFormat",
    "tiledb": "tailerd.formats.tiledb.format:TileDBFormat",
}
"""Name of a table format -> its class, a `tailerd.formats.base.TableFormat` made without arguments.

`tailerd.formats.detect.table_format` makes it.
"""

SINKS: dict[str, str] = {
    "console": "tailerd.sinks.console.config:ConsoleSinkConfig",
    "file": "tailerd.sinks.file.config:FileSinkConfig",
    "http": "tailerd.sinks.http.config:HttpSinkConfig",
    "kafka": "tailerd.sinks.kafka.config:KafkaSinkConfig",
    "postgres": "tailerd.sinks.postgres.config:PostgresSinkConfig",
    "stream": "tailerd.sinks.stream.config:StreamSinkConfig",
}
"""Sink kind -> the class of its configuration section, a `tailerd.config.SinkConfig`."""

STORES: Mapping[str, str] = {
    "abfs": "tailerd.storage.object_store.provider:AzureStoreProvider",
    "abfss": "tailerd.storage.object_store.provider:AzureStoreProvider",
    "az": "tailerd.storage.object_store.provider:AzureStoreProvider",
    "file": "tailerd.storage.local:LocalStoreProvider",
    "gs": "tailerd.storage.object_store.provider:GoogleStoreProvider",
    "https": "tailerd.storage.object_store.provider:AzureStoreProvider",
    "iceberg": "tailerd.formats.iceberg.catalog:CatalogStoreProvider",
    "memory": "tailerd.storage.memory:MemoryStoreProvider",
    "s3": "tailerd.storage.s3.provider:S3StoreProvider",
    "s3a": "tailerd.storage.s3.provider:S3StoreProvider",
    "s3n": "tailerd.storage.s3.provider:S3StoreProvider",
}
"""URL scheme -> the class that finds its stores, a `tailerd.storage.base.StoreProvider`."""

VALUE_FORMATS: dict[str, str] = {
    "avro": "tailerd.records.formats.registered_formats:AvroRecords",
    "cloudevents": "tailerd.records.formats.cloudevents:CloudEventsRecords",
    "debezium": "tailerd.records.formats.debezium:DebeziumRecords",
    "json": "tailerd.records.formats.json:JsonRecords",
    "json_schema": "tailerd.records.formats.registered_formats:RegisteredJsonRecords",
    "protobuf": "tailerd.records.formats.registered_formats:ProtobufRecords",
}
"""Name of a value format -> its class, a `tailerd.records.base.RecordFormat`."""

FORMATS_WITH_SCHEMAS = frozenset({"avro", "json_schema", "protobuf"})
"""Built-in value formats that need a schema registry; those of others report it when used."""

AUTO = "auto"
"""Instead of a table format's name: the format is detected when the table is opened."""

EXTRAS: Mapping[str, str] = {
    "confluent_kafka": "registry",
    "fastavro": "registry",
    "google": "registry",
    "lance": "lance",
    "psycopg": "postgres",
    "pyiceberg": "iceberg",
    "pyspark": "spark",
    "textual": "terminal",
    "tiledb": "tiledb",
}
"""Module -> the extra that installs it."""

MAINTENANCE_PROGRAMS: dict[str, str] = {"spark": "tailerd.spark.maintenance_program"}
"""Engine of maintenance -> the module that is run as a program to do one large job."""


def sink_kinds() -> tuple[str, ...]:
    """Return every kind of sink that can be configured, sorted."""
    return _names(SINKS, SINKS_GROUP)


def sink_config_class(kind: str) -> type[object]:
    """Load the configuration class of a sink kind.

    Raises:
        ConfigError: The kind is unknown, or the distribution that brings it does not load.
    """
    return _part("sink kind", kind, SINKS, SINKS_GROUP)


def value_format_names() -> tuple[str, ...]:
    """Return the name of every value format, sorted."""
    return _names(VALUE_FORMATS, VALUE_FORMATS_GROUP)


def value_format(name: str) -> type[object]:
    """Load the class of a value format.

    Raises:
        ConfigError: The name is unknown, or the distribution that brings it does not load.
    """
    return _part("value format", name, VALUE_FORMATS, VALUE_FORMATS_GROUP)


def format_names() -> tuple[str, ...]:
    """Return every table format that can be read here: built-in ones in order, then others."""
    others = {point.name for point in plugged_in()[FORMATS_GROUP]} - FORMATS.keys()
    return (*FORMATS, *sorted(others))


def format_class(name: str) -> type[object]:
    """Load the class of a table format.

    Raises:
        ConfigError: The format is unknown, or the distribution that brings it does not load.
    """
    return _part("table format", name, FORMATS, FORMATS_GROUP)


def store_schemes() -> tuple[str, ...]:
    """Return the scheme of every location that can be named, sorted."""
    return _names(STORES, STORES_GROUP)


def store_provider(scheme: str, url: str = "") -> type[object]:
    """Load what finds the stores of a scheme.

    Args:
        scheme: In lower case.
        url: The location, for the error.

    Raises:
        ConfigError: The scheme is not supported, or the distribution that brings it does not load.
    """
    if scheme in STORES:
        return load_class(STORES[scheme])
    for point in plugged_in()[STORES_GROUP]:
        if point.name == scheme:
            return load_class(point.value)
    served = ", ".join(f"{each}://" for each in store_schemes() if each not in ("s3a", "s3n"))
    raise ConfigError(
        f"{url or scheme} has the unknown scheme {scheme!r}.",
        remedy=f"Known are: a path, {served}.",
    )


def is_remote(location: str) -> bool:
    """Return whether a location is in a store that is reached through a network, such as a bucket.

    A location with an unsupported scheme is not.

    Raises:
        ConfigError: The distribution that brings the store does not load.
    """
    scheme, separator, _ = location.partition("://")
    if not separator or scheme.lower() not in store_schemes():
        return False
    return bool(getattr(store_provider(scheme.lower(), location), "is_remote", False))


def with_first_scheme(url: str) -> str:
    """Return a URL with the first of the schemes that mean the same stores: `s3` for `s3a`."""
    scheme, _, rest = url.partition("://")
    kind = STORES.get(scheme.lower())
    first = next((name for name, each in STORES.items() if each == kind), scheme.lower())
    return f"{first}://{rest}"


def load_class(reference: str) -> type[object]:
    """Import the class that `module:Class` names.

    Raises:
        MissingExtraError: It needs a library that is not installed.
        ConfigError: The module cannot be imported.
        BugError: The module has no such class.
    """
    module_name, _, class_name = reference.partition(":")
    try:
        module = import_module(module_name)
    except ImportError as error:
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        if extra is not None:
            raise MissingExtraError(
                f"{module_name} needs {error.name}, which is not installed.",
                remedy=f"Install it: pip install 'tailerd[{extra}]'.",
            ) from error
        raise ConfigError(
            f"the part {reference!r} cannot be loaded, because importing it failed: {error}.",
            remedy="Install the distribution that brings it.",
        ) from error
    found = getattr(module, class_name, None)
    if not isinstance(found, type):
        raise BugError(f"The registry names {reference!r}, but there is no such class.")
    return found


def suggest_name(word: str, words: Iterable[str]) -> str:
    """Return a sentence that names the nearest of `words`, or all of them."""
    candidates = sorted(words)
    if meant := nearest(word, candidates):
        return f"Did you mean `{meant}`?"
    return f"Known here: {', '.join(candidates)}." if candidates else ""


def nearest(word: str, words: Iterable[str]) -> str:
    """Return the one of `words` that is similar to `word`; empty if none is."""
    by_folded = {each.casefold(): each for each in sorted(words)}
    found = difflib.get_close_matches(word.casefold(), by_folded, n=1, cutoff=0.6)
    return by_folded[found[0]] if found else ""


def unknown_field(where: str, name: str, table_format: str, fields: Iterable[str]) -> ConfigError:
    """Return the error for a field of a section that a table format does not have.

    Args:
        where: The section's path.
        fields: Those that the format has.
    """
    there = sorted(fields)
    meant = nearest(name, there)
    return ConfigError(
        f"{where}.{name} is not a known field for a table of the format {table_format}, which has"
        f" {', '.join(there)}.",
        remedy=f"Did you mean `{meant}`?" if meant else "Remove it, or correct its name.",
        where=f"{where}.{name}",
    )


@functools.cache
def plugged_in() -> Mapping[str, EntryPoints]:
    """Return the entry points of each kind's group.

    Searched once a process: each search, also that for one group, reads a file of every
    distribution.
    """
    found = entry_points()
    groups = (FORMATS_GROUP, SINKS_GROUP, STORES_GROUP, VALUE_FORMATS_GROUP)
    return {group: found.select(group=group) for group in groups}


def _names(parts: Mapping[str, str], group: str) -> tuple[str, ...]:
    return tuple(sorted({*parts, *(point.name for point in plugged_in()[group])}))


def _part(what: str, name: str, parts: Mapping[str, str], group: str) -> type[object]:
    if name in parts:
        return load_class(parts[name])
    for point in plugged_in()[group]:
        if point.name == name:
            return load_class(point.value)
    raise ConfigError(
        f"the {what} {name!r} is not known.", remedy=suggest_name(name, _names(parts, group))
    )
