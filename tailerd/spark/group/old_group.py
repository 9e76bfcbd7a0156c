"""What the group that a table leaves has delivered, where only the sink knows it."""

from __future__ import annotations

from pathlib import Path

from tailerd.config import SinkConfig
from tailerd.errors import TailerdError
from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.spark.group.delivered_batch import published_batch
from tailerd.spark.group.groups_folder import CHECKPOINT_FOLDER
from tailerd.spark.group.members import Members


def delivered_by(folder: Path, group: str, name: str, sink: SinkConfig) -> int | None:
    """Return the last batch that counts of a group that does not run and whose sink knows it.

    Files of lines say it beside the group's checkpoint. Of Kafka, exactly once, whatever the group
    had not committed when its process ended is undone, so it never will; it is asked for where the
    table writes now: other brokers have other rows. Blocking, seconds.

    Args:
        folder: Of the group.
        group: Its name.
        name: The table that leaves it.
        sink: What the table has now.

    Returns:
        None where nothing is known of one, or a row may come twice anyway.

    Raises:
        TailerdError: The brokers do not answer, or the group's files cannot be read.
    """
    published = published_batch(folder)
    if published is not None:
        return published.batch_id
    checkpoint = folder / CHECKPOINT_FOLDER
    if not isinstance(sink, KafkaSinkConfig) or not sink.is_exactly_once:
        return None
    # These load the client, which files do without.
    from tailerd.spark.kafka.checkpoint_identity import has_identity
    from tailerd.spark.kafka.group_sink import KafkaGroupSink
    from tailerd.spark.kafka.writer_name import writer_name

    if not has_identity(checkpoint):
        return None
    before = _before(folder, name, sink)
    kafka = KafkaGroupSink(lambda: {name: before}, checkpoint, writer_name(folder, group))
    try:
        return kafka.recover()
    finally:
        kafka.close()


def _before(folder: Path, name: str, sink: KafkaSinkConfig) -> KafkaSinkConfig:
    """Return the section that the group knew, with the way to brokers that is configured now."""
    try:
        found = {each.name: each.kafka for each in Members.read(folder).tables}.get(name)
    except TailerdError:
        found = None
    if found is None or not found.is_exactly_once:
        return sink
    now = {"bootstrap_servers": sink.bootstrap_servers, "producer": sink.producer}
    return found.model_copy(update=now)
