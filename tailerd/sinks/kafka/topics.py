"""Topics: existence, limits, ids and write access; creates them on request. Blocking."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from uuid import UUID

from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import KafkaError, TopicAlreadyExistsError, for_code

from tailerd.errors import (
    ConfigError,
    SinkError,
    SinkRefusedError,
    TailerdError,
    TopicRecreatedError,
)
from tailerd.remedies import RESTART
from tailerd.sinks.kafka.connection import DEFAULT_MAX_REQUEST_SIZE, Connection

_NOT_THERE = 3
_NOT_ALLOWED = 29
PROBLEM_HINT = "Bring brokers back, or lower min.insync.replicas of the topic."
MAX_AGE_SECONDS = 300.0
"""Maximum age of a topic's cached facts: the same as in Kafka's own clients."""
_BROKER_DEFAULT_BYTES = 1_048_588
"""Kafka's default of `message.max.bytes`, used if this user may not read the settings."""
_CONFIRM_SECONDS = 0.5
_NO_ID = str(UUID(int=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFacts:
    """What brokers report about a topic.

    Attributes:
        name: Its name.
        partitions: Number of partitions.
        replicas: Replicas of its first partition.
        max_message_bytes: The largest batch it accepts.
        cleanup_policy: `delete`, `compact` or both; empty if this user may not see it.
        min_insync_replicas: Replicas that must have a record before it is acknowledged.
        may_write: Whether this user may write it.
        retention_ms: Age, by its own timestamp, at which a record is deleted; None if records are
            not deleted, or if unknown.
        topic_id: Kafka's topic id, which changes when a topic is recreated; empty if the brokers
            are too old to have ids.
        is_unlimited: Whether neither age nor size deletes records, if `delete` is its policy.
        ahead_ms: How far ahead of the brokers' clock a record's timestamp may be; None if there is
            no limit, or if unknown.
    """

    name: str
    partitions: int
    replicas: int
    topic_id: str = ""
    is_unlimited: bool = True
    max_message_bytes: int = _BROKER_DEFAULT_BYTES
    cleanup_policy: str = ""
    min_insync_replicas: int = 1
    may_write: bool = True
    retention_ms: int | None = None
    ahead_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """Creation settings of a topic.

    Attributes:
        partitions, replication_factor: None uses the brokers' default.
        configs: Kafka's topic settings.
    """

    partitions: int | None = None
    replication_factor: int | None = None
    configs: Mapping[str, str]


class Topics:
    """Caches facts about topics on one cluster, each fetched once until `forget` or `renew`."""

    def __init__(self, connection: Connection, untracked: Iterable[str] = ()) -> None:
        """Initialize; sends no request.

        Args:
            connection: To the cluster.
            untracked: Topics that may be recreated, because losing them loses no data.
        """
        self._connection = connection
        self._untracked = frozenset(untracked)
        self._known: dict[str, TopicFacts] = {}
        self._expected: dict[str, str] = {}
        self._cluster = ""
        self._requested: set[str] = set()
        self._described_at: dict[str, float] = {}
        self._max_request_size = connection.number("max_request_size", DEFAULT_MAX_REQUEST_SIZE)

    def forget(self) -> None:
        """Clear the cache."""
        self._known.clear()
        self._requested.clear()
        self._described_at.clear()

    @property
    def known(self) -> tuple[TopicFacts, ...]:
        """All facts since the last `forget`, fetched or learned."""
        return tuple(self._known.values())

    @property
    def requested(self) -> tuple[TopicFacts, ...]:
        """Facts fetched from the brokers since the last `forget`, without learned ones."""
        return tuple(self._known[name] for name in self._requested)

    def renew(self, max_age_seconds: float = 0.0) -> bool:
        """Fetch facts again that are older than `max_age_seconds`: topics change while in use.

        Returns:
            Whether any fact has changed.

        Raises:
            TopicRecreatedError: A topic was deleted or recreated.
            SinkError: The brokers cannot be reached, or refuse.
        """
        oldest = time.monotonic() - max_age_seconds
        old = {name: self._known[name] for name, at in self._described_at.items() if at <= oldest}
        if not old:
            return False
        found = self.describe(old)
        for name, facts in found.items():
            self.check_facts(name, facts)
            if facts is None:
                del self._known[name], self._described_at[name]
                self._requested.discard(name)
            else:
                self._keep(facts)
                self._requested.add(name)
        return found != old

    def learn(self, facts: Iterable[TopicFacts]) -> None:
        """Add facts that another tailerd process fetched, so that they are not fetched again."""
        learned = tuple(facts)
        for each in learned:
            self._keep(each)
        self.expect({f.name: f.topic_id for f in learned if f.name not in self._expected})

    def expect(self, ids: Mapping[str, str]) -> None:
        """Set the expected ids of topics; a different id is an error."""
        self._expected |= {n: i for n, i in ids.items() if i and n not in self._untracked}

    @property
    def ids(self) -> dict[str, str]:
        """The expected topic ids: those given, and those used since."""
        return dict(self._expected)

    def cluster_id(self) -> str:
        """Return the id of the cluster; cached.

        Raises:
            SinkError: The brokers cannot be reached.
        """
        if not self._cluster:
            with (
                self._connection.admin() as admin,
                self._connection.calls("does not return its cluster id"),
            ):
                self._cluster = str(admin.describe_cluster().get("cluster_id") or "")
        return self._cluster

    @property
    def expected(self) -> Mapping[str, str]:
        """All expected topic ids."""
        return self._expected

    def check_ids(self) -> None:
        """Check with the brokers that topics have their expected ids.

        Raises:
            TopicRecreatedError: A topic was deleted or recreated.
            SinkError: The brokers cannot be reached.
        """
        for error in self.find_recreated().values():
            raise error

    def find_recreated(self) -> dict[str, TopicRecreatedError]:
        """Return the topics that were deleted or recreated, each with its error.

        Raises:
            SinkError: The brokers cannot be reached.
        """
        found: dict[str, TopicRecreatedError] = {}
        if not self._expected:
            return found
        for is_last in (False, True):
            with (
                self._connection.admin() as admin,
                self._connection.calls("cannot describe topics"),
            ):
                described = admin.describe_topics(sorted(self._expected))
            gone = [str(each["name"]) for each in described if each["error_code"] == _NOT_THERE]
            for each in described:
                try:
                    self._check_id(str(each["name"]), _read_id(each))
                except TopicRecreatedError as error:
                    found[str(each["name"])] = error
            if not gone or is_last:
                return found | {name: self._describe_deleted(name) for name in gone}
            # A starting broker may not know the topic yet.
            time.sleep(_CONFIRM_SECONDS)
        return found

    def check_facts(self, name: str, facts: TopicFacts | None) -> None:
        """Check that a topic has its expected id, if there is one.

        Raises:
            TopicRecreatedError: It was deleted or recreated.
        """
        if facts is not None:
            self._check_id(name, facts.topic_id)
        elif name in self._expected:
            raise self._describe_deleted(name)

    def _describe_deleted(self, name: str) -> TopicRecreatedError:
        return self._describe_recreated(name, "was deleted")

    def _check_id(self, name: str, topic_id: str) -> None:
        expected = self._expected.get(name, "")
        if expected and topic_id and topic_id != expected:
            raise self._describe_recreated(name, "was deleted and recreated")

    def _describe_recreated(self, name: str, what: str) -> TopicRecreatedError:
        return TopicRecreatedError(
            f"The topic {name} at {self._connection.address} {what}, so the records delivered"
            " into it are lost.",
            remedy=f"{RESTART}: all of the table is delivered again, into the topics that exist"
            " then.",
        )

    def max_batch_bytes(self, facts: TopicFacts) -> int:
        """Return the largest batch that both the topic and our requests allow."""
        return min(facts.max_message_bytes, self._max_request_size)

    def describe(self, names: Iterable[str]) -> dict[str, TopicFacts | None]:
        """Fetch facts about topics; None for a missing one. Creates nothing.

        Raises:
            SinkRefusedError: This user may not see a topic.
            SinkError: The brokers cannot be reached, or cannot describe a topic now.
        """
        wanted = sorted(set(names))
        with (
            self._connection.admin() as admin,
            self._connection.calls("cannot describe topics"),
        ):
            return self._describe(admin, wanted)

    def ensure(self, names: Mapping[str, NewTopic | None]) -> dict[str, TopicFacts]:
        """Return the facts about topics; creates missing ones.

        Args:
            names: Topics, each with its creation settings; None if it must exist.

        Raises:
            SinkRefusedError: A topic is missing and may not be created, or may not be written.
            SinkError: The brokers cannot be reached, or cannot describe a topic now.
        """
        unknown = {name: new for name, new in names.items() if name not in self._known}
        if unknown:
            with self._connection.admin() as admin, self._connection.calls("cannot create topics"):
                found = self._describe(admin, sorted(unknown))
                for name, facts in found.items():
                    self.check_facts(name, facts)
                missing = {n: new for n, new in unknown.items() if found[n] is None}
                if missing:
                    self._make(admin, missing)
                    found |= self._describe(admin, sorted(missing))
            for name, facts in found.items():
                checked = self._check_facts(name, facts)
                self._keep(checked)
                self._requested.add(name)
                self.expect({name: checked.topic_id})
        return {name: self._known[name] for name in names}

    def try_creation(self, topics: Mapping[str, NewTopic]) -> None:
        """Check with the brokers whether topics could be created; creates none.

        Raises:
            SinkRefusedError: A topic could not, for example with more replicas than brokers.
            SinkError: The brokers cannot be reached, or cannot answer now.
        """
        for name, new in topics.items():
            with (
                self._connection.admin() as admin,
                self._connection.calls(f"cannot create the topic {name}"),
                suppress(TopicAlreadyExistsError),
            ):
                admin.create_topics({name: _request(new)}, validate_only=True)

    def problem(self) -> str | None:
        """Return why the topics in use do not accept records; empty if no reason is found.

        The client retries such errors and then reports only a timeout. Queries the brokers; None
        if they do not answer.
        """
        if not self._known:
            return None
        try:
            with self._connection.admin() as admin:
                described = admin.describe_topics(sorted(self._known))
        except (KafkaError, TailerdError):
            return None
        found = (
            _partition_problem(topic["name"], partition, self._known[topic["name"]])
            for topic in described
            for partition in topic["partitions"]
        )
        return next((text for text in found if text), "")

    def _keep(self, facts: TopicFacts) -> None:
        self._known[facts.name] = facts
        self._described_at[facts.name] = time.monotonic()

    def _describe(self, admin: KafkaAdminClient, names: list[str]) -> dict[str, TopicFacts | None]:
        found: dict[str, TopicFacts | None] = dict.fromkeys(names)
        for topic in admin.describe_topics(names):
            code, name = topic["error_code"], topic["name"]
            if code == _NOT_ALLOWED:
                raise SinkRefusedError(
                    f"Authorization failed: the topic {name} may not be seen by this user of Kafka"
                    f" at {self._connection.address}, or does not exist.",
                    remedy="Give it Describe and Write on the topic (kafka-acls).",
                )
            if code == 0 and topic["partitions"]:
                found[name] = _facts(topic)
            elif code != _NOT_THERE:
                # A leader election or a starting broker: the topic may exist.
                why = for_code(code).__name__ if code else "it has no partitions yet"
                raise SinkError(
                    f"Kafka at {self._connection.address} cannot describe the topic {name} now:"
                    f" {why}."
                )
        there = [name for name, facts in found.items() if facts is not None]
        for name, settings in _settings(admin, there).items():
            facts = found[name]
            if facts is not None:
                found[name] = _with_settings(facts, settings)
        return found

    def _make(self, admin: KafkaAdminClient, missing: Mapping[str, NewTopic | None]) -> None:
        for name, new in missing.items():
            if new is None:
                raise topic_missing(name, self._connection.address)
        try:
            admin.create_topics(
                {name: _request(new) for name, new in missing.items() if new is not None},
                wait_for_metadata=True,
            )
        except TopicAlreadyExistsError:
            # Another pipeline created it first.
            admin.wait_for_topics(list(missing))

    def _check_facts(self, name: str, facts: TopicFacts | None) -> TopicFacts:
        if facts is None:
            raise SinkError(f"The topic {name} was created but does not exist yet.")
        check_writable(facts, self._connection.address)
        return facts


def topic_missing(name: str, address: str) -> SinkRefusedError:
    """Return the error for a topic that is missing and may not be created."""
    return SinkRefusedError(
        f"The topic {name} does not exist at {address}.",
        remedy="Create it, or set create_topic so that it is created.",
    )


def check_writable(facts: TopicFacts, address: str) -> None:
    """Check that a topic can be written.

    Raises:
        SinkRefusedError: This user may not write to it.
        ConfigError: It can never acknowledge a record.
    """
    if not facts.may_write:
        raise SinkRefusedError(
            f"Authorization failed: the topic {facts.name} at {address} may not be written by this"
            " user.",
            remedy="Give it Write on the topic (kafka-acls), or configure another user.",
        )
    if facts.min_insync_replicas > facts.replicas:
        raise ConfigError(
            f"The topic {facts.name} has {facts.replicas} copies and min.insync.replicas"
            f" {facts.min_insync_replicas}, so nothing written to it is ever acknowledged.",
            remedy="Lower min.insync.replicas of the topic, or add copies.",
        )


def _request(new: NewTopic) -> dict[str, object]:
    return {
        "num_partitions": new.partitions or -1,
        "replication_factor": new.replication_factor or -1,
        "configs": dict(new.configs),
    }


def _facts(topic: dict[str, object]) -> TopicFacts:
    partitions = topic["partitions"]
    assert isinstance(partitions, list)
    operations = topic.get("authorized_operations")
    # Old brokers do not report permissions.
    may_write = not isinstance(operations, list) or not operations or "WRITE" in operations
    return TopicFacts(
        name=str(topic["name"]),
        partitions=len(partitions),
        replicas=len(partitions[0]["replica_nodes"]),
        topic_id=_read_id(topic),
        may_write=may_write,
    )


def _read_id(topic: Mapping[str, object]) -> str:
    found = str(topic.get("topic_id") or "")
    return "" if found == _NO_ID else found


def _partition_problem(name: str, partition: Mapping[str, object], facts: TopicFacts) -> str:
    number, in_sync = partition["partition_index"], partition["isr_nodes"]
    assert isinstance(in_sync, list)
    if partition["leader_id"] == -1:
        return f"Partition {number} of {name} has no leader: a broker is missing."
    if len(in_sync) < facts.min_insync_replicas:
        return (
            f"Partition {number} of {name} has not enough replicas: {len(in_sync)} in sync, and its"
            f" min.insync.replicas is {facts.min_insync_replicas}."
        )
    return ""


def _settings(admin: KafkaAdminClient, names: list[str]) -> dict[str, dict[str, str]]:
    """Return the settings of topics, without those that this user may not see."""
    found: dict[str, dict[str, str]] = {}
    for name in names:
        resource = ConfigResource(ConfigResourceType.TOPIC, name)
        try:
            answer = admin.describe_configs([resource], config_filter="all")
        except KafkaError:
            # Reading settings is a separate right; without it Kafka's defaults are assumed.
            continue
        entries = answer.get("topic", {}).get(name, {})
        found[name] = {key: str(entry["value"]) for key, entry in entries.items()}
    return found


def _with_settings(facts: TopicFacts, settings: Mapping[str, str]) -> TopicFacts:
    return replace(
        facts,
        max_message_bytes=int(settings.get("max.message.bytes", _BROKER_DEFAULT_BYTES)),
        cleanup_policy=settings.get("cleanup.policy", ""),
        min_insync_replicas=int(settings.get("min.insync.replicas", 1)),
        retention_ms=_retention_ms(settings),
        is_unlimited=all(
            int(settings.get(limit, -1)) < 0 for limit in ("retention.ms", "retention.bytes")
        ),
        ahead_ms=_ahead_ms(settings),
    )


def _retention_ms(settings: Mapping[str, str]) -> int | None:
    is_deleting = "delete" in settings.get("cleanup.policy", "").split(",")
    limit_ms = int(settings.get("retention.ms", -1))
    return limit_ms if _has_our_times(settings) and is_deleting and limit_ms >= 0 else None


def _ahead_ms(settings: Mapping[str, str]) -> int | None:
    # Brokers before 4.0 also have the second one.
    names = ("message.timestamp.after.max.ms", "message.timestamp.difference.max.ms")
    limits = [int(settings[name]) for name in names if name in settings]
    return min(limits, default=None) if _has_our_times(settings) else None


def _has_our_times(settings: Mapping[str, str]) -> bool:
    return settings.get("message.timestamp.type", "CreateTime") == "CreateTime"
