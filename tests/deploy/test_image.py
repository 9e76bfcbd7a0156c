"""The container images: built by buildah, run by podman as Kubernetes runs them."""

from __future__ import annotations

import json
import os
import tomllib
import uuid
from pathlib import Path

import pytest
import yaml

from tailerd import __version__
from tests.deploy import engine
from tests.deploy.chart import pod_of, rendered
from tests.deploy.lake import CONFIG, Lake, kafka_sink, table_section
from tests.kafka.broker import Broker
from tests.kafka.ports import free_port
from tests.kafka.topics import Topics

pytestmark = [pytest.mark.full, pytest.mark.slow, pytest.mark.xdist_group("image")]

PROJECT = tomllib.loads((engine.ROOT / "pyproject.toml").read_text())
BUDGET_MB = {"none": 850, "17": 1650}


@pytest.fixture(scope="module", params=["none", "17"], ids=["arrow", "java"])
def java(request: pytest.FixtureRequest) -> str:
    """The Dockerfile's argument JAVA: each of its two images."""
    return str(request.param)


@pytest.fixture(scope="module")
def image(java: str) -> str:
    """The id of an image of this checkout; where none can be built tests skip, in CI they fail."""
    try:
        return engine.build_image(java)
    except engine.EngineUnavailableError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(" ".join(str(error).split()))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


def once(image: str, volumes: dict[Path, str], *options: str) -> list[str]:
    """Return the words before the command of a container that ends with it."""
    words = engine.run_words(image, volumes=volumes)
    return engine.podman_words("run", "--rm", "--entrypoint=", *options, *words)


def test_tini_hands_signals_on_and_the_chart_starts_the_same(image: str) -> None:
    config = json.loads(engine.podman("image", "inspect", image))[0]["Config"]
    assert config["Entrypoint"] == ["tini", "--", "entrypoint"]
    assert (config["User"], config["StopSignal"]) == ("10001:10001", "SIGTERM")
    assert config["Volumes"] == {"/var/lib/tailerd": {}}
    pod = pod_of(rendered())
    [container] = pod["containers"]
    assert config["Cmd"] == container["args"]
    assert config["WorkingDir"] == container["workingDir"]
    assert list(config["ExposedPorts"]) == [f"{container['ports'][0]['containerPort']}/tcp"]
    security = pod["securityContext"]
    assert config["User"] == f"{security['runAsUser']}:{security['runAsGroup']}"
    labels = {name.rpartition("image.")[2]: text for name, text in config["Labels"].items()}
    assert labels["version"] == __version__
    assert labels["licenses"] == PROJECT["project"]["license"]
    assert {"title", "description", "revision", "base.name"} <= set(labels)


def test_it_has_no_compiler_no_pip_and_no_more_megabytes_than_its_budget(
    image: str, java: str
) -> None:
    look = """import importlib.util, json, os, shutil
tools = ["cc", "gcc", "g++", "make", "pip", "pip3", "uv"]
modules = ["pip", "setuptools", "pyspark"]
print(json.dumps([[t for t in tools if shutil.which(t)],
    [m for m in modules if importlib.util.find_spec(m)], os.getuid()]))
"""
    for program, expected in {
        "/opt/tailerd/bin/python": [] if java == "none" else ["pyspark"],
        "/usr/local/bin/python": [],
    }.items():
        found = engine.run([*once(image, {}), program, "-c", look])
        assert json.loads(found) == [[], expected, engine.USER], program
    size = json.loads(engine.podman("image", "inspect", image))[0]["Size"] / 1e6
    print(f"image with JAVA={java}: {size:.0f} MB")
    assert size < BUDGET_MB[java]


def test_run_once_delivers_a_table_from_a_read_only_root(image: str, java: str, lake: Lake) -> None:
    lake.make_table("orders")
    name = "arrow" if java == "none" else "spark"
    tables = {"orders": table_section("orders")}
    volumes = lake.configure(0, engine=name, spark={"master": "local[1]"}, tables=tables)
    engine.run([*once(image, volumes), "tailerd", "run", "--config", CONFIG, "--once"])
    lake.await_delivery("orders", once(image, volumes))
    assert engine.run([*once(image, {}), "tailerd", "--version"]).endswith(__version__)


@pytest.mark.kafka
def test_a_daemon_is_healthy_delivers_to_kafka_and_saves_its_offsets_on_sigterm(
    image: str, lake: Lake, kafka_broker: Broker, topics: Topics
) -> None:
    table = lake.make_table("orders")
    port = free_port()
    sink = kafka_sink(kafka_broker.plain, topics.create())
    volumes = lake.configure(port, tables={"orders": table_section("orders", **sink)})
    name = f"tailerd-{uuid.uuid4().hex}"
    health = f"--env=HEALTH_URL=http://127.0.0.1:{port}/healthz"
    words = engine.run_words(image, volumes=volumes)
    engine.podman("run", "--detach", f"--name={name}", health, *words)
    try:
        lake.await_delivery("orders", engine.podman_words("exec", name))
        assert engine.podman("healthcheck", "run", name) == ""
        table.change()
        lake.await_delivery("orders", engine.podman_words("exec", name))
        engine.podman("stop", "--time=60", name)
        assert engine.podman("wait", name) == "0", engine.podman("logs", name)
    finally:
        engine.podman("rm", "--force", name)
    lake.await_delivery("orders", once(image, volumes))


@pytest.mark.parametrize("java", ["none"], indirect=True)
def test_without_spark_its_engine_is_refused_with_the_way_out(image: str, lake: Lake) -> None:
    volumes = lake.configure(0, engine="spark", tables={"orders": table_section("orders")})
    words = [*once(image, volumes), "tailerd", "run", "--config", CONFIG, "--once"]
    text = "The engine of tables.orders is spark, but PySpark is not installed"
    with pytest.raises(RuntimeError, match=text):
        engine.run(words)


@pytest.mark.kafka
@pytest.mark.parametrize("java", ["none"], indirect=True)
def test_our_service_of_the_compose_file_delivers(
    image: str, lake: Lake, kafka_broker: Broker, topics: Topics
) -> None:
    compose = yaml.safe_load((engine.ROOT / "config/compose.yaml").read_text())
    service = compose["services"]["tailerd"]
    [mount] = service["configs"]
    text = compose["configs"][mount["source"]]["content"]
    path = lake.folder / "tailerd.yaml"
    path.write_text(text.replace("kafka:9092", kafka_broker.plain).replace(":9464", ":0"))
    [state] = [each.partition(":")[2] for each in service["volumes"]]
    volumes = {lake.folder / "state": state, path: f"{mount['target']}:ro"}
    engine.run([*once(image, volumes), "tailerd", "run", "--config", CONFIG, "--once"])
    (lake.folder / "lake").rmdir()
    (lake.folder / "lake").symlink_to(lake.folder / "state/lake")
    lake.await_delivery("orders", once(image, volumes))
    topics.delete("orders")
