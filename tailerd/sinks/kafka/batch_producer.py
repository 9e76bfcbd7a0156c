"""Send finished record batches through kafka-python's sender.

`KafkaProducer.send` builds batches record by record in Python, which is most of its cost. Here a
finished batch replaces the client's own builder in its accumulator; the client still handles
metadata, retries, idempotence, transactions, TLS and SASL.
"""

from __future__ import annotations

from collections.abc import Iterator

from kafka import KafkaProducer, TopicPartition
from kafka.errors import IllegalStateError
from kafka.producer.future import FutureProduceResult
from kafka.producer.producer_batch import ProducerBatch

from tailerd.errors import BugError
from tailerd.sinks.kafka.acknowledgements import Acknowledgements
from tailerd.sinks.kafka.client_internals import append_batch
from tailerd.sinks.kafka.produce_request import ProduceRequest
from tailerd.sinks.kafka.record_batches.compression import Compression
from tailerd.sinks.kafka.record_batches.record_batch import (
    OversizeRecord,
    RecordBatch,
    RecordBatchLimit,
    record_batches,
)

_PIECE_BYTES = 8 * 1024**2
"""Size of a piece that is encoded at once: large enough for full batches, but bounds memory."""


class BatchProducer:
    """Passes records to kafka-python as finished batches. Blocking; used by one thread at a time.

    Records of one partition arrive in the order in which they were sent. Inside a transaction they
    are part of it.
    """

    def __init__(self, producer: KafkaProducer, *, compression: Compression) -> None:
        self._producer = producer
        self._compression = compression

    def send(
        self, request: ProduceRequest, acknowledgements: Acknowledgements
    ) -> tuple[OversizeRecord, ...]:
        """Pass on all records except those that are too large, which are returned.

        Returns when everything is passed to the client; waits while too much is in flight.
        `acknowledgements` is notified of acknowledgements and failures.

        Raises:
            TailerdError: Earlier records failed; some of these may be in flight.
        """
        oversize: list[OversizeRecord] = []
        for start, piece in _pieces(request):
            built = record_batches(
                piece.records,
                timestamps_ms=piece.timestamps_ms,
                partitions=piece.partitions,
                headers=piece.headers,
                compression=self._compression,
                limit=RecordBatchLimit(
                    max_bytes=request.max_bytes, target_bytes=acknowledgements.window_bytes
                ),
            )
            for batch in built.batches:
                acknowledgements.reserve(batch.size_bytes)
                self._enqueue(request.topic, batch, acknowledgements)
            oversize += (
                OversizeRecord(row=start + each.row, size_bytes=each.size_bytes)
                for each in built.oversize
            )
        return tuple(oversize)

    def _enqueue(self, topic: str, batch: RecordBatch, acknowledgements: Acknowledgements) -> None:
        item = ProducerBatch(TopicPartition(topic, batch.partition), FinishedRecords(batch))
        append_batch(self._producer, item, _Watch(item.produce_future, batch, acknowledgements))


class FinishedRecords:
    """A finished batch that replaces kafka-python's `MemoryRecordsBuilder`."""

    __slots__ = ("_batch", "_buffer", "_count", "_size", "_state", "_transactional")

    def __init__(self, batch: RecordBatch) -> None:
        self._batch: RecordBatch | None = batch
        self._buffer: memoryview | None = None
        self._count = batch.num_records
        self._size = batch.size_bytes
        self._state = (-1, -1, -1)
        self._transactional = False

    def append(self, *_: object) -> None:
        """Refuse further records, which the client recognises by None."""
        return

    def set_producer_state(
        self, producer_id: int, producer_epoch: int, base_sequence: int, is_transactional: bool
    ) -> None:
        """Set the producer id and epoch, before `close`."""
        if self._batch is None:
            raise IllegalStateError("the producer's state is written already")
        self._state = (producer_id, producer_epoch, base_sequence)
        self._transactional = is_transactional

    @property
    def producer_id(self) -> int:
        """The producer id; -1 until it is set."""
        return self._state[0]

    @property
    def producer_epoch(self) -> int:
        """The producer's epoch."""
        return self._state[1]

    @property
    def base_sequence(self) -> int:
        """Number of the first record in the producer's sequence for this partition."""
        return self._state[2]

    def close(self) -> None:
        """Write the header; idempotent, because retries call it again."""
        if self._batch is not None:
            producer_id, epoch, sequence = self._state
            self._buffer = self._batch.finish(
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=sequence,
                is_transactional=self._transactional,
            )
            self._batch = None

    def is_full(self) -> bool:
        """Return True: the batch does not wait for more records."""
        return True

    def next_offset(self) -> int:
        """Return the number of records."""
        return self._count

    def size_in_bytes(self) -> int:
        """Return the size of the finished batch."""
        return self._size

    def compression_rate(self) -> float:
        """Return 1: the client does not measure the compression."""
        return 1.0

    def buffer(self) -> memoryview:
        """Return the finished batch."""
        if self._buffer is None:
            raise BugError("A record batch was requested before it was finished.")
        return self._buffer


class _Watch:
    """Notifies `Acknowledgements` when a batch is done, also if the client splits it.

    It replaces the list of futures of the batch's records. The client splits a batch that a broker
    rejects as too large, and rebinds each record's future to the record's new, smaller batch; the
    future of the original batch then never completes. So this waits for all current batches.
    """

    def __init__(
        self, future: FutureProduceResult, batch: RecordBatch, acknowledgements: Acknowledgements
    ) -> None:
        self._original = future
        self._count = batch.num_records
        self._size_bytes = batch.size_bytes
        self._acknowledgements = acknowledgements
        self._error: Exception | None = None
        self._waiting: set[FutureProduceResult] = set()
        self._wait_for(future)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> _Bound:
        return _Bound(self, self._original)

    def move(self, before: FutureProduceResult, after: FutureProduceResult) -> None:
        """Wait for `after` instead of `before`; called by the thread that completes both."""
        if after not in self._waiting:
            self._wait_for(after)
        self._waiting.discard(before)

    def _wait_for(self, future: FutureProduceResult) -> None:
        self._waiting.add(future)
        future.add_callback(lambda result: self._note_end(future, _parse_error(result)))
        future.add_errback(lambda error: self._note_end(future, error))

    def _note_end(self, future: FutureProduceResult, error: Exception | None) -> None:
        self._waiting.discard(future)
        self._error = self._error or error
        if not self._waiting:
            self._acknowledgements.done(self._size_bytes, self._error)


class _Bound:
    """Represents one record's future while the client splits a batch."""

    __slots__ = ("_future", "_watch")

    def __init__(self, watch: _Watch, future: FutureProduceResult) -> None:
        self._watch = watch
        self._future = future

    def rebind(self, future: FutureProduceResult, _index: int) -> None:
        """Record the batch that the record was moved to."""
        self._watch.move(self._future, future)
        self._future = future


def _parse_error(result: tuple[object, object, object]) -> Exception | None:
    # The client also completes a failed batch, with a function that returns each record's error.
    errors = result[2]
    error = errors(0) if callable(errors) else None
    return error if isinstance(error, Exception) else None


def _pieces(request: ProduceRequest) -> Iterator[tuple[int, ProduceRequest]]:
    """Yield the records in pieces of bounded size, each with the index of its first record."""
    records = request.records
    count = len(records)
    size = records.values.nbytes + (records.keys.nbytes if records.keys is not None else 0)
    step = max(1, count * _PIECE_BYTES // max(size, 1))
    for start in range(0, count, step):
        yield start, request.slice(start, min(step, count - start))
