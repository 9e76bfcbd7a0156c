"""Which tables' Kafka sinks may share a query, and what Spark cannot do with one. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from tailerd.errors import ConfigError
from tailerd.sinks.kafka.config import KafkaSinkConfig, mixed_error, mixed_topics


def check_for_spark(config: KafkaSinkConfig, table: str) -> None:
    """Make sure that the Spark engine can do what a table's sink asks for.

    Raises:
        ConfigError: It cannot.
    """
    if option := config.missing_on("spark"):
        raise ConfigError(
            f"The Kafka sink of {table} has {option}, which the Spark engine does not have.",
            remedy=f"Leave {option.partition(':')[0]} out, or set `engine: arrow` for the table.",
        )


def check_group(sinks: Mapping[str, KafkaSinkConfig]) -> dict[str, ConfigError]:
    """Return what keeps single tables from being written, by table; the others go on without them.

    A table asks for what Spark cannot do or, exactly once, its rows go where the driver writes: a
    partition has one writer.

    Raises:
        ConfigError: They have different brokers or producers, so none can be written.
    """
    if len({config.sharing_key for config in sinks.values()}) > 1:
        raise ConfigError("Tables with different brokers or producers cannot share a query.")
    faults = {table: mixed_error(table, topic) for table, topic in mixed_topics(sinks).items()}
    for table, config in sinks.items():
        try:
            check_for_spark(config, table)
        except ConfigError as error:
            faults[table] = error
    return faults


def check_speculation(setting: str, sinks: Mapping[str, KafkaSinkConfig]) -> dict[str, ConfigError]:
    """Return what keeps single tables from being written where Spark starts tasks twice.

    The slower one of two attempts may send what it has of a key behind newer records of it.

    Args:
        setting: Of `spark.speculation`, as Spark takes it.
        sinks: Section of each table, of one `sharing_key`.

    Raises:
        ConfigError: None can be written: two attempts cannot write into one transaction.
    """
    if setting.strip().casefold() != "true":
        return {}
    if any(config.is_exactly_once for config in sinks.values()):
        raise ConfigError(
            "spark.speculation is on, and two attempts of a task cannot write into one"
            " transaction.",
            remedy="Leave it off.",
        )
    return {
        table: ConfigError(
            f"spark.speculation is on, and of two attempts of a task the slower one may send older"
            f" records of a key of {table} after newer ones.",
            remedy="Leave it off; only tables without `key` can do with it.",
        )
        for table, config in sinks.items()
        if config.key
    }
