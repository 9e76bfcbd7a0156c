"""Which tables' sinks may have one producer, and which of their topics must not be shared. Pure."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping

from tailerd.errors import ConfigError
from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.sinks.kafka.producer_options import SECRETS, revealed
from tailerd.sinks.kafka.templates import TABLE_NAMES, TopicTemplate, filled_text


def sharing_key(config: KafkaSinkConfig) -> str:
    """Return what is equal for tables that may share a query: brokers, delivery, producer.

    Passwords are not: who changes one stays who he is. All other options of the producer are, as
    there is one for all, and no table's may be left out.
    """
    options = revealed(config.producer)
    return json.dumps(
        [
            config.bootstrap_servers,
            config.delivery,
            config.transactional_id,
            config.offsets_topic,
            config.batching,
            config.max_in_flight_bytes,
            sorted((name, options[name]) for name in options if name not in SECRETS),
        ]
    )


def mixed_topics(sinks: Mapping[str, KafkaSinkConfig]) -> dict[str, str]:
    """Return the tables whose rows go where the producer they share writes itself, with the topic.

    Exactly once, that are the topics of offsets and of dead letters: in a transaction each
    partition has one writer.
    """
    together: defaultdict[str, dict[str, KafkaSinkConfig]] = defaultdict(dict)
    for table, config in sinks.items():
        if config.is_exactly_once:
            together[sharing_key(config)][table] = config
    return {
        table: topic
        for some in together.values()
        for reserved in (_reserved(some),)
        for table, config in some.items()
        if (topic := _mixed(config, table, reserved))
    }


def mixed_error(table: str, topic: str) -> ConfigError:
    """Return what to say of one of those tables."""
    return ConfigError(
        f"Rows of {table} go to the topic {topic}, which is the topic of offsets or of dead"
        " letters.",
        hint="Name another topic for one of them.",
    )


def _reserved(sinks: Mapping[str, KafkaSinkConfig]) -> set[str]:
    letters = {
        config.topic_of(config.dead_letter_topic, table)
        for table, config in sinks.items()
        if config.dead_letter_topic is not None
    }
    return letters | {config.offsets_topic for config in sinks.values()}


def _mixed(config: KafkaSinkConfig, table: str, reserved: set[str]) -> str:
    template = TopicTemplate.parse(config.topic)
    if template.column is None:
        # Most are like this, and thousands of tables may have as many topics.
        topic = filled_text(config.topic, dict.fromkeys(TABLE_NAMES, table))
        return topic if topic in reserved else ""
    return next((topic for topic in sorted(reserved) if template.gives(table, topic)), "")
