"""Which tables' Kafka sinks may share a query, and what Spark cannot do with one. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from tailerd.errors import ConfigError
from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.sinks.kafka.producer_options import revealed
from tailerd.sinks.kafka.templates import TopicTemplate
from tailerd.spark.kafka.blame import blaming


def sharing_key(config: KafkaSinkConfig) -> str:
    """Return what is equal for tables that may share a query: brokers, delivery, producer."""
    return json.dumps(
        [
            config.bootstrap_servers,
            config.delivery,
            config.transactional_id,
            config.offsets_topic,
            config.batching,
            config.max_in_flight_bytes,
            sorted(revealed(config.producer).items()),
        ]
    )


def check_for_spark(config: KafkaSinkConfig, table: str) -> None:
    """Make sure that the Spark engine can do what a table's sink asks for.

    Raises:
        ConfigError: It cannot.
    """
    if option := config.missing_on("spark"):
        raise ConfigError(
            f"The Kafka sink of {table} has {option}, which the Spark engine does not have.",
            hint=f"Leave {option.partition(':')[0]} out, or set `engine: arrow` for the table.",
        )


def check_group(sinks: Mapping[str, KafkaSinkConfig]) -> None:
    """Make sure that tables can share a query; an error of one table's is marked as its.

    Raises:
        ConfigError: They have different brokers or producers, one asks for what Spark cannot do,
            or, exactly once, rows go where the driver writes: a partition has one writer.
    """
    if len({sharing_key(config) for config in sinks.values()}) > 1:
        raise ConfigError("Tables with different brokers or producers cannot share a query.")
    reserved = [topic for table, config in sinks.items() for topic in _of_the_driver(table, config)]
    for table, config in sinks.items():
        with blaming(table):
            check_for_spark(config, table)
            _check_topics(config, table, reserved)


def _of_the_driver(table: str, config: KafkaSinkConfig) -> list[str]:
    if not config.is_exactly_once:
        return []
    letters = config.dead_letter_topic
    return [config.offsets_topic, *([] if letters is None else [config.topic_of(letters, table)])]


def _check_topics(config: KafkaSinkConfig, table: str, reserved: Sequence[str]) -> None:
    template = TopicTemplate.parse(config.topic)
    for topic in reserved:
        if template.gives(table, topic):
            raise ConfigError(
                f"Rows of {table} go to the topic {topic}, which is the topic of offsets or of"
                " dead letters.",
                hint="Name another topic for one of them.",
            )
