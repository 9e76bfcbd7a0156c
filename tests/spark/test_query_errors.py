"""Errors through what Spark makes of them: a trailer at the worker's edge, read on the driver."""

from __future__ import annotations

import io
import pickle
import traceback
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import cloudpickle
from pyspark.util import handle_worker_exception

from tailerd.errors import (
    EngineError,
    MissingDataFileError,
    SchemaChangedError,
    SinkError,
    TableError,
    TailerdError,
)
from tailerd.spark.query_errors import AS_DATA, format_trailer, parse_error
from tailerd.spark.worker_edge import all_errors_travel, errors_travel
from tests.errors_tree import CLASSES, with_all_fields

JAVA = """org.apache.spark.SparkException: [STREAM_FAILED] Query terminated with exception: Job \
aborted due to stage failure: Task 0 in stage 3.0 failed 1 times, most recent failure: Lost task
org.apache.spark.api.python.PythonException: {}
\tat org.apache.spark.api.python.BasePythonRunner.read(PythonRunner.scala:1)
\t... 12 more
=== Streaming Query ===
Identifier: orders"""


@pytest.fixture(autouse=True, scope="module")
def _in_a_daemons_session() -> Iterator[None]:
    """Errors carry their data only where a daemon reads them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(AS_DATA, "1")
        yield


def spark_says(raising: object) -> str:
    """Return what Spark's own worker and Java make of an error raised by a function."""
    output = io.BytesIO()
    assert callable(raising)
    try:
        raising()
    except Exception as error:  # noqa: BLE001 - as Spark's worker does
        handle_worker_exception(error, output)
    return JAVA.format(output.getvalue()[8:].decode())


def described(error: TailerdError) -> tuple[object, ...]:
    return (type(error), str(error), *(getattr(error, name) for name in error.fields))


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.code)
def test_every_error_comes_back_out_of_sparks_text(kind: type[TailerdError]) -> None:
    error = with_all_fields(kind)

    @errors_travel
    def work() -> None:
        raise error

    assert described(parse_error(spark_says(work))) == described(error)


def test_people_read_the_message_as_before() -> None:
    @errors_travel
    def work() -> None:
        raise MissingDataFileError("a.parquet is gone.", remedy="Restore it.")

    text = spark_says(work)
    assert "tailerd.errors.MissingDataFileError: a.parquet is gone. Restore it.\n" in text
    assert str(parse_error(text)) == "a.parquet is gone. Restore it."


def test_the_error_that_ended_the_work_is_told_and_not_its_causes() -> None:
    @errors_travel
    def inner() -> None:
        raise SchemaChangedError("The column x is string.")

    @errors_travel
    def outer() -> None:
        try:
            inner()
        except SchemaChangedError as error:
            raise SinkError("The sink has no such column.") from error

    text = spark_says(outer)
    assert text.count("tailerd-error:") == 2
    # Java repeats what Python said, in the messages of exceptions around it.
    assert described(parse_error(f"{text}\nCaused by: {text}")) == described(
        SinkError("The sink has no such column.")
    )


def test_an_error_that_is_raised_again_has_one_trailer_of_what_it_is_now() -> None:
    error = SinkError("It is full.")

    @errors_travel
    def work() -> None:
        raise error

    spark_says(work)
    error.table = "orders"
    text = spark_says(work)
    assert text.count("tailerd-error:") == 1
    assert parse_error(text).table == "orders"


def test_items_that_are_made_later_are_inside_the_edge_too() -> None:
    closed = []

    @errors_travel
    def work(count: int) -> Iterator[int]:
        try:
            yield from range(count)
            raise TableError("No more.")
        finally:
            closed.append(count)

    items = work(2)
    assert [next(items), next(items)] == [0, 1]
    assert type(parse_error(spark_says(lambda: next(items)))) is TableError
    stopped = work(5)
    next(stopped)
    stopped.close()  # type: ignore[attr-defined]
    assert closed == [2, 5]


def test_public_methods_of_a_class_are_inside_the_edge_and_keep_what_spark_looks_at() -> None:
    class Base:
        def read(self) -> int:
            return 1

    @all_errors_travel
    class Reader(Base):
        @classmethod
        def name(cls) -> str:
            return cls.__name__

        def latest(self, start: int) -> int:
            raise TableError(f"{start}")

        def _own(self) -> None:
            raise TableError("inside")

    assert (Reader.name(), Reader().read(), Reader.read) == ("Reader", 1, Base.read)
    assert parse_error(spark_says(lambda: Reader().latest(7))).message == "7"
    assert "tailerd-error:" not in spark_says(Reader()._own)


def test_a_function_inside_the_edge_can_be_sent_to_executors() -> None:
    number = 7
    work = errors_travel(lambda: number + 1)
    assert pickle.loads(cloudpickle.dumps(work))() == 8  # type: ignore[no-untyped-call]


def test_errors_of_others_pass_as_they_are() -> None:
    @errors_travel
    def work() -> None:
        raise KeyError("x")

    text = spark_says(work)
    assert "tailerd-error:" not in text
    assert described(parse_error(text)) == described(
        EngineError("The Spark query failed with KeyError: 'x'")
    )


@given(st.data())
def test_a_trailer_that_is_cut_or_garbled_is_not_believed(data: st.DataObject) -> None:
    error = SchemaChangedError("Version 7 has another schema.", version=7)
    trailer = format_trailer(error)
    at = data.draw(st.integers(len("tailerd-error:1:"), len(trailer) - 1))
    other = data.draw(st.sampled_from("ab0Z-_ \n:"))
    damaged = data.draw(
        st.sampled_from([trailer[:at], f"{trailer[:at]}{other}{trailer[at + 1 :]}"])
    )
    if damaged == trailer:
        return
    says = f"tailerd.errors.SchemaChangedError: {error}"
    # Whole ones of other errors are of causes, and so of no use.
    text = f"{says}\n{format_trailer(TableError('a cause'))}\n{says}\n{damaged}\n\tat java"
    found = parse_error(text)
    assert type(found) is EngineError
    assert "Version 7 has another schema." in str(found)


@given(st.text(), st.text(alphabet=st.characters()))
def test_any_message_travels_in_one_line_of_bounded_length(message: str, hint: str) -> None:
    error = SinkError(message, remedy=hint)
    trailer = format_trailer(error)
    assert len(trailer) < 1000 + 20 * (len(message) + len(hint))
    assert len(trailer.split()) == 1
    assert described(parse_error(f"x {trailer}\n")) == described(error)


@pytest.mark.parametrize("sign", ["\x00", "\u20ac", "\U0001f642"])
def test_the_longest_trailer_is_bounded(sign: str) -> None:
    longest = with_all_fields(SinkError)
    longest.message = longest.raw_remedy = longest.table = longest.where = longest.path = (
        sign * 10**6
    )
    longest.leftovers = (sign * 10**6,) * 1000
    assert len(format_trailer(longest)) <= 256 * 1024


def test_a_traceback_that_a_program_of_a_user_prints_shows_the_trailer_last() -> None:
    @errors_travel
    def work() -> None:
        raise SinkError("It is full.")

    with pytest.raises(SinkError) as raised:
        work()
    lines = traceback.format_exception_only(raised.value)
    assert [line.partition(":")[0] for line in lines] == [
        "tailerd.errors.SinkError",
        "tailerd-error",
    ]


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("java.net.SocketTimeoutException: Timed out while waiting", "Timed out while waiting"),
        ("Traceback:\n  File x\nbuiltins.ValueError: bad thing\n SQLSTATE: 1", "bad thing"),
        ("tailerd.errors.NoSuchError: odd", "odd"),
        ("something else broke", "something else broke"),
        ("", "did not say why"),
    ],
)
def test_any_other_failure_is_the_engines_and_worth_another_try(text: str, reported: str) -> None:
    error = parse_error(text)
    assert type(error) is EngineError
    assert error.retryable
    assert reported in str(error)
