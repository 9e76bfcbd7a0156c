"""What the Kafka sink of Spark's queries keeps of a checkpoint, and makes of damaged records."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tailerd.errors import OffsetError, StorageError
from tailerd.spark.delivered_batch import DeliveredBatch
from tailerd.spark.kafka.group_identity import checkpoint_identity, writer_name


def test_a_checkpoint_keeps_its_identity_until_it_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    first = checkpoint_identity(folder)
    assert checkpoint_identity(folder) == first
    shutil.rmtree(folder)
    assert checkpoint_identity(folder) != first


def test_a_damaged_or_unwritable_checkpoint_is_an_error(tmp_path: Path) -> None:
    checkpoint_identity(tmp_path)
    (tmp_path / "tailerd-kafka.json").write_text("{")
    with pytest.raises(OffsetError, match="is damaged"):
        checkpoint_identity(tmp_path)
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(StorageError, match="cannot be written"):
        checkpoint_identity(file)


def test_the_record_of_a_batch_is_read_back_and_a_strange_one_is_refused(tmp_path: Path) -> None:
    record = DeliveredBatch(checkpoint="c", batch_id=7, end="e")
    assert DeliveredBatch.from_json(record.to_json().encode(), "The record") == record
    with pytest.raises(OffsetError, match="The record has format 2, because a newer tailerd"):
        DeliveredBatch.from_json(b'{"format": 2}', "The record")
    for damaged in (b"", b"[]", b'{"format": 1, "checkpoint": "c", "batch_id": 7}'):
        with pytest.raises(OffsetError, match="The record is damaged"):
            DeliveredBatch.from_json(damaged, "The record")


def test_groups_of_two_state_folders_have_names_of_their_own_to_brokers(tmp_path: Path) -> None:
    sales, logistics = (
        writer_name(tmp_path / each, "kafka-1-001") for each in ("sales", "logistics")
    )
    assert sales != logistics
    assert sales.startswith("kafka-1-001-")
    assert writer_name(tmp_path / "sales", "kafka-1-001") == sales


def test_a_damaged_name_of_a_group_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "writer.json").write_text('{"name": 3}')
    with pytest.raises(OffsetError, match="has no name"):
        writer_name(tmp_path, "kafka-1-001")
