"""Records on their way to one topic, and what both kinds of producers do with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tailerd.records.base import Records
from tailerd.sinks.kafka.acknowledgements import Acknowledgements
from tailerd.sinks.kafka.record_batches.record_batch import OversizeRecord
from tailerd.sinks.kafka.record_batches.record_layout import Header


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """Records of one topic.

    Attributes:
        topic: Where they go.
        records: Keys and values, in the order in which they must be read.
        partitions: Of all records, or of each.
        timestamps_ms: Of all records, or of each; milliseconds since the epoch.
        headers: Of every record.
        max_bytes: The largest batch the topic takes, header included, without compression.
    """

    topic: str
    records: Records
    partitions: int | npt.NDArray[np.integer]
    timestamps_ms: int | npt.NDArray[np.int64]
    headers: tuple[Header, ...] = ()
    max_bytes: int


class Producer(Protocol):
    """Hands records to kafka-python. Blocking; used by one thread at a time.

    Records of one partition arrive in the order in which they were sent. Inside a transaction they
    belong to it.
    """

    def send(
        self, outgoing: Outgoing, acknowledgements: Acknowledgements
    ) -> tuple[OversizeRecord, ...]:
        """Hand over all records but those that are too large, which are returned.

        Returns when everything is handed over, waiting where too much is in flight;
        `acknowledgements` hears of the rest.

        Raises:
            TailerdError: Records sent before have failed; some of these may be on their way.
        """
        ...
