"""Options, marks and the fixtures that every suite may use."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import hypothesis
import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.clouds.queues import AzuriteQueues, PubSub
    from tests.clouds.servers import CloudServer
    from tests.kafka.broker import Broker
    from tests.kafka.schema_registry import SchemaRegistry
    from tests.kafka.topics import Topics
    from tests.maintenance.delta_spark import DeltaSpark
    from tests.postgres.server import Database, PostgresServer
    from tests.s3.servers import S3Server

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    # `tests` is importable also where pytest is started by its own name.
    sys.path.insert(0, str(ROOT))

from tests import tiers  # noqa: E402 - importable only now
from tests.archives import unpack  # noqa: E402
from tests.tables.given import locate_given_tables  # noqa: E402

hypothesis.settings.register_profile("tailerd", deadline=None, print_blob=True, database=None)
hypothesis.settings.load_profile("tailerd")


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # What a shell starts in the background ignores ^C, and so would the commands that tests end.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--full",
        action="store_true",
        help="every test, also those marked `full`",
    )
    parser.addoption("--benchmark", action="store_true", help="run the benchmarks too")
    parser.addoption(
        "--keep-results",
        action="store_true",
        help="append what benchmarks measure to tests/benchmarks/history",
    )
    parser.addoption(
        "--seeds",
        default="",
        help="how many seeds each random test runs with, or FIRST:UNTIL to repeat some;"
        " by default what its module says in DEFAULT_SEEDS, or 3",
    )
    parser.addoption(
        "--all-tables", action="store_true", help="every given table from a bucket, not just some"
    )
    parser.addoption("--kills", type=int, default=None, help="how often kill tests kill the daemon")
    parser.addoption(
        "--race-seconds", type=float, default=None, help="how long writers race with maintenance"
    )
    parser.addoption("--shots", default="", help="folder for the screenshots of tests/web")


@pytest.hookimpl(tryfirst=True)  # pytest-xdist makes of the number of processes what it needs.
def pytest_cmdline_main(config: pytest.Config) -> None:
    tiers.choose(config)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    # A worker reads the command line again, and settles nothing itself.
    node.workerinput["full"] = node.config.option.full
    node.workerinput["has_groups"] = node.config.option.dist == "loadgroup"


def pytest_configure(config: pytest.Config) -> None:
    given = getattr(config, "workerinput", None)
    if given is not None:
        config.option.full = given["full"]
        # What pytest-xdist goes by when it names the groups of tests.
        config.option.loadgroup = given["has_groups"]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep what is collected out of the search for garbage.

    None of it becomes any, and each search would go through nine thousand tests and their modules.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_unconfigure() -> None:
    # What is never freed, an extension of another project reports below pytest's last line.
    gc.unfreeze()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed and os.environ.get("CI") and "PYTEST_XDIST_WORKER" not in os.environ:
        # At once: a run that is cut off never comes to its summary.
        print(f"\n{report.nodeid}\n{report.longreprtext[-6000:]}", flush=True)


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in its own.
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.option.full:
        items[:], rest = tiers.left_out(items)
        config.hook.pytest_deselected(items=rest)
    for item in items:
        if "given_tables" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.golden)
        group = "" if item.get_closest_marker("xdist_group") else _group_of(item)
        if group:
            item.add_marker(pytest.mark.xdist_group(group))
    if getattr(config.option, "loadgroup", False):
        items[:] = tiers.mixed(items)
    if config.getoption("--benchmark"):
        return
    reason = pytest.mark.skip(reason="a benchmark: run it with --benchmark")
    for item in items:
        if item.get_closest_marker("benchmark"):
            item.add_marker(reason)


def _group_of(item: pytest.Item) -> str:
    """Return the group of tests that share a server: one worker starts it and runs them all."""
    fixtures = getattr(item, "fixturenames", ())
    if "delta_spark" in fixtures:
        return "delta-spark"
    if item.get_closest_marker("spark"):
        # Those without the session of this process have Java processes of their own.
        name = "spark" if {"spark", "engine"} & set(fixtures) else "spark-processes"
        return f"{name}-kafka" if item.get_closest_marker("kafka") else name
    if "postgres_server" in fixtures:
        return "postgres"
    if item.get_closest_marker("kafka"):
        # Those without the broker of this process have brokers of their own.
        return "kafka" if "kafka_broker" in fixtures else "kafka-processes"
    return ""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give tests that take `seed` each seed of `--seeds`; the id of a failure says which."""
    if "seed" in metafunc.fixturenames:
        default = getattr(metafunc.module, "DEFAULT_SEEDS", 3)
        if not metafunc.config.option.full:
            default = getattr(metafunc.module, "EVERYDAY_SEEDS", default)
        requested = metafunc.config.getoption("--seeds") or default
        first, colon, until = str(requested).rpartition(":")
        seeds = range(int(first) if colon else 0, int(until))
        metafunc.parametrize("seed", seeds, ids=[f"seed={seed}" for seed in seeds])


@pytest.fixture(scope="session")
def given_tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with `manifest.json`, `tables/` and `expected/` of tables written by others.

    Found at $TAILERD_TABLES (the archive, or a folder where it is unpacked) or next to the
    checkout. Do not write to it: it may be the user's own copy.
    """
    location = locate_given_tables()
    if location.is_dir():
        return location
    if not location.exists():
        message = f"The tables written by others are not at {location}; set TAILERD_TABLES."
        if os.environ.get("CI"):
            pytest.fail(message, pytrace=False)
        pytest.skip(message)
    folder = tmp_path_factory.mktemp("given-tables")
    # Commit timestamps are made of modification times.
    unpack(location, folder)
    return folder


@pytest.fixture(scope="session")
def given_manifest(given_tables: Path) -> list[dict[str, Any]]:
    """The manifest's entries of Delta tables."""
    entries = json.loads((given_tables / "manifest.json").read_text())["tables"]
    return [entry for entry in entries if entry.get("format") == "delta"]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A Spark session of this process, without any jar."""
    from tests.spark_session import spark_session

    yield from spark_session(tmp_path_factory.mktemp("warehouse"))


@pytest.fixture
def kept_spark(spark: SparkSession) -> Iterator[SparkSession]:
    """The session of this process; daemons that a test runs in this process have it too."""
    from tests.spark_session import session_stays

    with session_stays():
        yield spark


@pytest.fixture(
    params=["arrow", pytest.param("spark", marks=[pytest.mark.full, pytest.mark.spark])]
)
def engine(request: pytest.FixtureRequest) -> str:
    """Each engine; tests run `tailerd` in this process, where Spark runs once for all of them."""
    if request.param == "spark":
        request.getfixturevalue("kept_spark")
    return str(request.param)


@pytest.fixture(scope="session")
def delta_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeltaSpark]:
    """The one process of this run that has the reference implementation."""
    # Imported here, as below: most tests need neither it, nor a broker, nor clients of one.
    from tests.maintenance.delta_spark import delta_spark

    yield from delta_spark(tmp_path_factory.mktemp("delta-spark") / "log")


@pytest.fixture(scope="session")
def kafka_jars() -> Path:
    """Kafka's jars, and a Java for them; where they cannot be had tests skip, in CI they fail."""
    from tests.kafka.jars import KafkaUnavailableError, kafka_jars

    try:
        return kafka_jars()
    except KafkaUnavailableError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def kafka_broker(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The one broker of this run: shared, so leave it running and as you found it."""
    from tests.kafka.broker import Broker

    broker = Broker(tmp_path_factory.mktemp("kafka") / "broker")
    broker.start()
    yield broker
    broker.kill()
    broker.remove_data()


@pytest.fixture(scope="session")
def schema_registry(
    kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SchemaRegistry]:
    """The one schema registry of this run: shared, so leave it running, and use new subjects."""
    from tests.kafka.jars import KafkaUnavailableError
    from tests.kafka.schema_registry import SchemaRegistry, registry_jars

    try:
        registry_jars()
    except KafkaUnavailableError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))
    registry = SchemaRegistry(tmp_path_factory.mktemp("schema-registry"))
    registry.start()
    yield registry
    registry.stop()


@pytest.fixture
def topics(kafka_broker: Broker) -> Iterator[Topics]:
    """Makes topics on the shared broker; they are deleted after the test."""
    from tests.kafka.topics import Topics

    with Topics(kafka_broker.plain) as made:
        yield made


@pytest.fixture(scope="session")
def s3_moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One S3, SQS and SNS of this run, in memory: shared, so make a bucket of your own."""
    from tests.s3.servers import S3Server

    server = S3Server.moto(tmp_path_factory.mktemp("moto"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One PostgreSQL of this process: shared, so take a database of your own."""
    from tests.postgres.server import PostgresServer, PostgresUnavailableError

    try:
        server = PostgresServer()
    except PostgresUnavailableError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))
    server.start()
    yield server
    server.remove()


@pytest.fixture
def postgres(postgres_server: PostgresServer) -> Iterator[Database]:
    """A new database, dropped after the test."""
    database = postgres_server.new_database()
    yield database
    database.drop()


S = TypeVar("S", "CloudServer", "AzuriteQueues", "PubSub")


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CloudServer]:
    """One Azure of this run, in memory: shared, so make a container of your own."""
    from tests.clouds.servers import Azurite

    yield from _served(Azurite(tmp_path_factory.mktemp("azurite")))


@pytest.fixture(scope="session")
def fake_gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CloudServer]:
    """One Google of this run, in memory: shared, so make a bucket of your own."""
    from tests.clouds.servers import FakeGcs

    yield from _served(FakeGcs(tmp_path_factory.mktemp("gcs")))


@pytest.fixture(scope="session")
def azurite_queues(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzuriteQueues]:
    """The queues of one Azure of this run: shared, so make a queue of your own."""
    from tests.clouds.queues import AzuriteQueues

    yield from _served(AzuriteQueues(tmp_path_factory.mktemp("queues")))


@pytest.fixture(scope="session")
def pubsub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PubSub]:
    """One Pub/Sub of this run: shared, so make a topic of your own."""
    from tests.clouds.queues import PubSub

    yield from _served(PubSub(tmp_path_factory.mktemp("pubsub")))


def _served(server: S) -> Iterator[S]:
    from tests.clouds.servers import CloudServerUnavailableError

    try:
        server.start()
    except CloudServerUnavailableError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def s3_versitygw(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[S3Server]:
    """One S3 server of another make, which checks signatures; where it is not, tests skip."""
    from tests.s3.servers import S3Server, S3ServerUnavailableError

    try:
        server = S3Server.versitygw(tmp_path_factory.mktemp("versitygw"))
    except S3ServerUnavailableError as error:
        if os.environ.get("CI") or request.config.option.benchmark:
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))
    server.start()
    yield server
    server.stop()


@pytest.fixture(autouse=True)
def _no_kept_producers() -> Iterator[None]:
    """Close what a test played an engine's process with: its threads would work on for ever."""
    yield
    kept = sys.modules.get("tailerd.sinks.kafka.remote_writer")
    if kept is not None:
        for opened in kept._idle.values():
            opened.close()
        kept._idle.clear()
