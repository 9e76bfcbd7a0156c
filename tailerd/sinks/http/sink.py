"""Changes as requests to an HTTP endpoint, at least once.

The events of one key are in one lane, which sends one request at a time; lanes are concurrent. A
delivery ends when every event was accepted, or rejected and written durably to the dead letters. So
the saved offset covers only such events. Answers and their consequences:

    A  2xx                      -> accepted
    B  none, 408, 429, 5xx      -> repeated until `retry_for` is over, then the delivery fails
    C  413, several events      -> the first half is sent, then the second
    D  3xx                      -> the pipeline stops: a redirect could lead anywhere
    E  a status of `stop_on`    -> the pipeline stops: the configuration is wrong
    F  other 4xx                -> the rejected events are found by halving, each is a dead letter
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Self

from tailerd.backoff import Attempts, RetryPolicy
from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.offset import Offset
from tailerd.errors import ConfigError, SinkError, SinkRefusedError, TailerdError
from tailerd.pipeline_names import table_of
from tailerd.records.base import EventOptions, FormatOptions
from tailerd.records.json_text import timestamp_text
from tailerd.sinks.base import Delivery
from tailerd.sinks.http.config import HttpSinkConfig
from tailerd.sinks.http.dead_letters import DeadLetterFile, locate_dead_letters
from tailerd.sinks.http.endpoint import TOO_LARGE, Answer, Endpoint
from tailerd.sinks.http.requests import Events, LaneRequest, RequestCutter
from tailerd.sinks.record_formats import TableRecords, record_format
from tailerd.sinks.resources import SinkResources
from tailerd.sinks.topics.templates import filled_text, table_texts
from tailerd.telemetry import events
from tailerd.threads import in_thread

REJECTED = "event_rejected"
_NO_OPTIONS = (405, 501)
"""Answers of endpoints that exist, but have no OPTIONS."""
_Lane = asyncio.Queue[Events | None]
"""The next requests of a lane; None ends it."""


class HttpSink:
    """Posts the changes of one table to one endpoint."""

    def __init__(self, config: HttpSinkConfig, resources: SinkResources) -> None:
        """Initialize; sends no request.

        Raises:
            ConfigError: `hmac_key` is not valid.
        """
        self._config = config
        self._table = resources.table
        self._telemetry = resources.telemetry
        self._endpoint = Endpoint(config)
        self._records: TableRecords | None = None
        self._table_id = ""
        path = locate_dead_letters(config.dead_letters, resources.state, resources.table)
        self._letters = None if path is None else DeadLetterFile(path, resources.table)
        self._rejected: Counter[str] = Counter()
        self._resumes_at = 0.0

    @classmethod
    def from_config(cls, config: HttpSinkConfig, resources: SinkResources) -> Self:
        """Build the sink of a table."""
        return cls(config, resources)

    @property
    def max_in_flight(self) -> int:
        """One: deliveries of one key must not overtake each other."""
        return 1

    @property
    def offsets(self) -> None:
        """None: the daemon stores them."""

    @property
    def key(self) -> Sequence[str]:
        """The columns of an event's key."""
        return self._config.key

    async def healthcheck(self) -> None:
        """Ask the endpoint for its options, and check where dead letters go.

        Raises:
            TailerdError: The endpoint cannot be reached or refuses, or the file is not writable.
        """
        self._check_letters()
        answer = await self._endpoint.probe()
        if not answer.is_accepted and answer.status not in _NO_OPTIONS:
            self._check_endpoint(answer)
            if answer.is_temporary:
                raise SinkError(
                    f"{self._config.url} answered {answer.summary} to OPTIONS.",
                    remedy="Check the endpoint.",
                )

    async def resume(self, offset: Offset) -> None:
        """Prepare deliveries from an offset on; sent events cannot be undone.

        Raises:
            ConfigError: No file is configured for dead letters, or it is not writable.
        """
        self._check_letters()
        self._use_table_id(offset.table_id)

    async def write(self, delivery: Delivery) -> int:
        """Send all rows; return their number.

        Raises:
            SinkRefusedError: The endpoint refuses, so somebody must correct the configuration.
            SinkError: The endpoint did not answer in time.
        """
        rows = 0
        self._use_table_id(delivery.start.table_id)
        try:
            async with asyncio.TaskGroup() as group:
                lanes: list[_Lane] = [asyncio.Queue(maxsize=1) for _ in range(self._config.lanes)]
                sending = [group.create_task(self._send_lane(lane)) for lane in lanes]
                cutter = self._make_cutter()
                async for batch in delivery.batches:
                    for number, request in await in_thread(self._encode, cutter, batch):
                        await lanes[number].put(request)
                    rows += batch.num_rows
                for number, request in cutter.finish():
                    await lanes[number].put(request)
                for lane in lanes:
                    await lane.put(None)
                # Inside the group: a lane that fails while the group exits would leave this task
                # marked as cancelled although no caller cancelled it.
                await asyncio.wait(sending)
        except ExceptionGroup as failures:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                # A task group raises its tasks' errors instead of a concurrent cancellation.
                raise asyncio.CancelledError from failures
            # A permanent error of a lane decides before a temporary one of another.
            raise min(failures.exceptions, key=_is_retried) from failures
        finally:
            # Also if the delivery failed: these events are in the file.
            self._report_rejected()
        return rows

    async def aclose(self) -> None:
        """Close connections; idempotent."""
        await self._endpoint.close()

    def _make_cutter(self) -> RequestCutter:
        batch = self._config.batch
        return RequestCutter(
            lanes=self._config.lanes, max_events=batch.max_events, max_bytes=batch.max_bytes
        )

    def _use_table_id(self, table_id: str) -> None:
        if self._records is None or table_id != self._table_id:
            options = _format_options(self._config, self._table, table_id)
            self._records, self._table_id = TableRecords(self._config.format, options), table_id

    def _encode(self, cutter: RequestCutter, batch: ChangeBatch) -> list[LaneRequest]:
        assert self._records is not None
        return cutter.add(batch, self._records.records(batch))

    async def _send_lane(self, requests: _Lane) -> None:
        while (request := await requests.get()) is not None:
            await self._deliver(request)

    async def _deliver(self, request: Events) -> None:
        """Send events until each is accepted or a dead letter; the table's cases are above."""
        answer = await self._post(request)
        if answer.is_accepted:
            return
        self._check_endpoint(answer)
        if len(request) > 1:
            for half in request.halve():
                await self._deliver(half)
            return
        await self._reject(request, answer)

    async def _post(self, request: Events) -> Answer:
        """Send a request until an answer is final.

        Raises:
            SinkError: None was within `retry_for`.
        """
        body = request.values[0].as_py() if self._config.is_single else request.to_array()
        identity = request.idempotency_key(self._table)
        attempts = Attempts(RetryPolicy(max_seconds=self._config.retry_for), time.monotonic)
        while True:
            await asyncio.sleep(max(0.0, self._resumes_at - time.monotonic()))
            try:
                answer = await self._endpoint.post(body, identity)
                if not answer.is_temporary:
                    return answer
                failure = self._describe_failure(answer)
            except SinkError as error:
                if not error.retryable:
                    raise
                failure, answer = error, Answer(status=0)
            attempts.count()
            self._respect_retry_after(answer)
            pause = self._resumes_at - time.monotonic()
            if attempts.are_exhausted or pause > attempts.seconds_left:
                raise failure
            await asyncio.sleep(attempts.wait_seconds())

    def _respect_retry_after(self, answer: Answer) -> None:
        """Pause all lanes, also those of the next delivery."""
        if answer.retry_after is not None:
            seconds = min(answer.retry_after, self._config.max_retry_after)
            self._resumes_at = max(self._resumes_at, time.monotonic() + seconds)

    def _describe_failure(self, answer: Answer) -> SinkError:
        message = f"{self._config.url} answered {answer.summary}"
        if answer.retry_after is not None:
            message += f" and asks to wait {answer.retry_after:g} s"
        return SinkError(
            f"{message}.", remedy="Check the endpoint; the delivery is repeated until it succeeds."
        )

    def _check_endpoint(self, answer: Answer) -> None:
        """Raise `SinkRefusedError` for an answer that no event causes."""
        url, status = self._config.url, answer.status
        if status < 200 or 300 <= status < 400:
            raise SinkRefusedError(
                f"{url} answered {answer.summary}, and redirects are not followed, because events"
                " and credentials could go to anybody.",
                remedy="Set `url` to the address that the endpoint has now.",
            )
        if status in self._config.stop_on:
            raise SinkRefusedError(
                f"{url} answered {answer.summary}, which is about the URL, the credentials or the"
                " form of requests, and not about an event.",
                remedy="Correct `url`, `headers`, `bearer_token`, `oauth`, `format` or"
                f" `compression`. If the endpoint rejects single events with {status}, leave it"
                " out of `stop_on`.",
            )

    async def _reject(self, request: Events, answer: Answer) -> None:
        """Write the one event of a request to the dead letters, or stop."""
        [value], [identity] = request.values.to_pylist(), request.ids.to_pylist()
        if self._config.on_reject == "stop" or self._letters is None:
            raise SinkRefusedError(
                f"{self._config.url} rejected the event {identity.decode()} of {self._table} with"
                f" {answer.summary}.",
                remedy="Correct the endpoint, or set `on_reject: dead-letter` to write such events"
                " to a file and continue.",
            )
        now = timestamp_text(time.time_ns() // 1000)
        await in_thread(self._letters.append, value, identity.decode(), answer, now)
        self._rejected["event_too_large" if answer.status == TOO_LARGE else REJECTED] += 1

    def _check_letters(self) -> None:
        if self._config.on_reject == "stop":
            return
        if self._letters is None:
            raise ConfigError(
                f"The sink of {self._table} has no file for rejected events, because `state` is in"
                " a bucket.",
                remedy="Set `dead_letters` to a file of this machine, or `on_reject: stop`.",
                where="dead_letters",
            )
        self._letters.check()

    def _report_rejected(self) -> None:
        rejected, self._rejected = self._rejected, Counter()
        for code, count in rejected.items():
            self._telemetry.emit(
                events.DeadLettersStored(
                    table=self._table,
                    sink=self._config.kind,
                    error_code=code,
                    topic="" if self._letters is None else str(self._letters.path),
                    records=count,
                )
            )


def _format_options(config: HttpSinkConfig, table: str, table_id: str) -> FormatOptions:
    options = FormatOptions(
        name="tailerd",
        table=table_of(table),
        table_id=table_id,
        key=config.key,
        decimals=config.decimals,
        tombstones=False,
    )
    if config.format == "cloudevents":
        data = record_format(config.cloudevents.data, options)
        source = filled_text(config.cloudevents.source, table_texts(table))
        event_options = EventOptions(data=data, mode="structured", source=source)
        options = replace(options, events=event_options)
    return replace(options, has_ids=True)


def _is_retried(error: Exception) -> bool:
    return isinstance(error, TailerdError) and error.retryable
