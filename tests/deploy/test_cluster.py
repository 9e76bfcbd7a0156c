"""The chart on a real cluster: installed, killed, upgraded, taken away."""

from __future__ import annotations

import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tailerd import __version__
from tailerd.formats.parts import DemoTable
from tests.deploy import engine
from tests.deploy.chart import CHART, VALUES
from tests.deploy.cluster import HOST, Cluster, ClusterUnavailableError, run_cluster
from tests.deploy.lake import Lake, kafka_sink, table_section
from tests.kafka.broker import USERS, Broker
from tests.kafka.certificates import make_certificates
from tests.kafka.topics import Topics
from tests.s3.servers import ACCESS_KEY, SECRET_KEY, S3Server
from tests.s3.upload import upload

pytestmark = [
    pytest.mark.full,
    pytest.mark.slow,
    pytest.mark.kafka,
    pytest.mark.xdist_group("cluster"),
]

RELEASE = "changes"
OPERATOR = {"PodMonitor": "podmonitors", "ServiceMonitor": "servicemonitors"}
OPERATOR |= {"PrometheusRule": "prometheusrules"}
POD = "changes-tailerd-0"
TOKEN = "a-token-of-the-test"
CLAIMS = ("lake", "changes")
_BEFORE_SECONDS, _AFTER_SECONDS = 1, 4
EXECUTORS = VALUES[0].parent / "executors.yaml"
SMALL = {"requests": {"cpu": "50m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """The one cluster of this run; where none can run tests skip, in CI they fail."""
    try:
        with run_cluster() as running:
            add_operator(running)
            yield running
    except ClusterUnavailableError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(" ".join(str(error).split()))


@pytest.fixture(scope="module")
def broker(
    cluster: Cluster, kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    """A broker that pods reach."""
    made = Broker(tmp_path_factory.mktemp("kafka") / "broker", host=HOST)
    made.start()
    yield made
    made.kill()


@pytest.fixture(scope="module")
def s3(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Buckets and queues that pods reach."""
    server = S3Server.moto(tmp_path_factory.mktemp("moto"), host=HOST)
    server.start()
    yield server
    server.stop()


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """A namespace that enforces the restricted standard, and the folders of its volumes."""

    cluster: Cluster
    name: str
    lake: Lake

    def kubectl(self, *arguments: str | Path, manifests: object = None) -> str:
        return self.cluster.kubectl("--namespace", self.name, *arguments, manifests=manifests)

    def helm(self, *arguments: str | Path) -> str:
        return self.cluster.helm("--namespace", self.name, *arguments)

    def apply(self, *manifests: object) -> None:
        items = {"apiVersion": "v1", "kind": "List", "items": manifests}
        self.kubectl("apply", manifests=items)

    def add_volume(self, claim: str, folder: Path, size: str = "10Gi", kind: str = "") -> None:
        """Offer a folder as the volume of a claim, which may not exist yet."""
        owner = {"namespace": self.name, "name": claim}
        name = f"{self.name}-{claim}"
        self.cluster.add_volume(name, folder, capacity={"storage": size}, kind=kind, owner=owner)

    def add_claim(self, claim: str, folder: Path) -> None:
        """Offer a folder as a volume, and claim it."""
        self.add_volume(claim, folder)
        request = {"requests": {"storage": "1Gi"}}
        spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": "", "resources": request}
        self.apply(manifest("PersistentVolumeClaim", claim, spec=spec))

    def add_secret(self, name: str, data: dict[str, str]) -> None:
        self.apply(manifest("Secret", name, stringData=data))

    def write(self, values: dict[str, Any]) -> Path:
        path = self.lake.folder / "values.yaml"
        path.write_text(yaml.safe_dump(values))
        return path

    def install(self, values: dict[str, Any], *arguments: str | Path) -> None:
        """Install or upgrade the release, and wait until its pod is ready."""
        own: list[str | Path] = ["--values", self.write(values), "--wait", "--timeout=300s"]
        self.helm("upgrade", "--install", RELEASE, CHART, *arguments, *own)

    def words(self) -> list[str]:
        """Return the words before a command in the pod."""
        return self.cluster.kubectl_words("--namespace", self.name, "exec", POD, "--")

    def ask(self, path: str, token: str = "", method: str = "GET") -> tuple[int, str]:
        """Send a request to the pod; return status and body of the response."""
        address = self.kubectl("get", "pod", POD, "--output=jsonpath={.status.podIP}")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        request = urllib.request.Request(
            f"http://{address}:9464{path}", headers={**headers, "X-Tailerd": "1"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def end(self, pod: str, how: str) -> None:
        """`delete` a pod, or `kill` its container."""
        if how == "delete":
            self.kubectl("delete", "pod", pod, "--wait=false")
        else:
            self.cluster.kill_container(pod, self.name)

    def executors(self) -> list[str]:
        """Return the names of Spark's pods."""
        found = self.kubectl("get", "pods", "--selector=spark-role=executor", "--output=name")
        return [name.removeprefix("pod/") for name in found.split()]

    def restarts(self) -> int:
        [status] = self.cluster.read("pod", POD, "-n", self.name)["status"]["containerStatuses"]
        return int(status["restartCount"])


@contextmanager
def keep_changing(*tables: DemoTable) -> Iterator[None]:
    """Commit to tables, before, during and for some seconds after what happens inside."""
    is_over = threading.Event()

    def change() -> None:
        while not is_over.wait(0.2):
            for table in tables:
                table.change()

    with ThreadPoolExecutor(1) as pool:
        changing = pool.submit(change)
        try:
            time.sleep(_BEFORE_SECONDS)
            yield
            time.sleep(_AFTER_SECONDS)
        finally:
            is_over.set()
        changing.result()


def manifest(kind: str, name: str, version: str = "v1", **fields: object) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **fields}


def add_operator(cluster: Cluster) -> None:
    """Let the server take objects of the Prometheus operator, and a class of priorities."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    group = "monitoring.coreos.com"
    items = [
        manifest(
            *("CustomResourceDefinition", f"{plural}.{group}", "apiextensions.k8s.io/v1"),
            spec={
                "group": group,
                "scope": "Namespaced",
                "versions": [version],
                "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            },
        )
        for kind, plural in OPERATOR.items()
    ]
    items.append(manifest("PriorityClass", "important", "scheduling.k8s.io/v1", value=1000))
    cluster.kubectl("apply", manifests={"apiVersion": "v1", "kind": "List", "items": items})


@pytest.fixture
def space(cluster: Cluster, tmp_path: Path) -> Iterator[Space]:
    """A new namespace, deleted after the test, with claims of `lake` and `changes`."""
    name = f"lake-{time.monotonic_ns()}"
    made = Space(cluster=cluster, name=name, lake=Lake(tmp_path))
    cluster.kubectl("create", "namespace", name)
    cluster.kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
    for claim in CLAIMS:
        made.add_claim(claim, tmp_path / claim)
    yield made
    cluster.kubectl("delete", "namespace", name, "--wait=false")


def make_values(tables: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return values with both claims mounted."""
    return {
        "config": {"engine": "arrow", "tables": tables},
        "resources": SMALL,
        "volumes": [{"name": c, "persistentVolumeClaim": {"claimName": c}} for c in CLAIMS],
        "volumeMounts": [{"name": name, "mountPath": f"/{name}"} for name in CLAIMS],
        **more,
    }


def test_deleted_pods_and_killed_containers_lose_and_double_nothing(
    space: Space, broker: Broker
) -> None:
    space.add_volume(f"state-{POD}", space.lake.folder / "state")
    tables = {name: space.lake.make_table(name) for name in ("orders", "payments")}
    with Topics(broker.plain) as topics:
        sink = kafka_sink(broker.plain, topics.create())
        sections = {"orders": table_section("orders")}
        space.install(make_values({**sections, "payments": table_section("payments", **sink)}))
        for end in ("delete", "kill", "delete", "kill"):
            with keep_changing(*tables.values()):
                space.end(POD, end)
            for name in tables:
                space.lake.await_delivery(name, space.words())
    assert space.restarts() == 1


def test_an_upgrade_a_rollback_and_a_new_install_resume_at_the_offsets(space: Space) -> None:
    space.add_volume(f"state-{POD}", space.lake.folder / "state")
    orders = space.lake.make_table("orders")
    sections = {"orders": table_section("orders")}
    space.install(make_values(sections))
    space.lake.await_delivery("orders", space.words())
    space.lake.make_table("payments")
    orders.change()
    space.install(make_values({**sections, "payments": table_section("payments")}))
    for name in ("orders", "payments"):
        space.lake.await_delivery(name, space.words())
    orders.change()
    space.helm("rollback", RELEASE, "--wait", "--timeout=300s")
    space.lake.await_delivery("orders", space.words())
    assert "payments" not in space.ask("/status")[1]
    assert "Succeeded" in space.helm("test", RELEASE, "--timeout=300s")
    space.helm("uninstall", RELEASE, "--wait", "--timeout=300s")
    orders.change()
    claims = space.kubectl("get", "persistentvolumeclaims", "--output=name")
    assert f"persistentvolumeclaim/state-{POD}" in claims.split()
    space.install(make_values(sections))
    space.lake.await_delivery("orders", space.words())


def test_state_in_a_bucket_outlives_a_pod_that_has_no_volume(space: Space, s3: S3Server) -> None:
    orders = space.lake.make_table("orders")
    values = make_values(
        {"orders": table_section("orders")}, state={"url": f"s3://{s3.new_bucket()}/a"}
    )
    values["config"]["storage"] = {"endpoint": s3.endpoint, "region": "us-east-1"}
    space.add_secret("keys", {"id": ACCESS_KEY, "key": SECRET_KEY})
    values["secretEnv"] = {
        "TAILERD__STORAGE__ACCESS_KEY_ID": {"secret": "keys", "key": "id"},
        "TAILERD__STORAGE__SECRET_ACCESS_KEY": {"secret": "keys", "key": "key"},
    }
    space.install(values)
    space.lake.await_delivery("orders", space.words())
    space.kubectl("delete", "pod", POD, "--wait=false")
    orders.change()
    space.lake.await_delivery("orders", space.words())


def test_a_token_from_a_secret_controls_the_daemon_and_is_nowhere_else(space: Space) -> None:
    space.lake.make_table("orders")
    space.add_secret("token", {"token": TOKEN})
    values = make_values({"orders": table_section("orders")}, state={"ephemeral": True})
    space.install({**values, "http": {"read": "token", "token": {"secret": "token"}}})
    assert space.ask("/status")[0] == 401
    assert space.ask("/status", TOKEN)[0] == 200
    assert space.ask("/pipelines/orders/pause", "another", "POST")[0] == 401
    assert space.ask("/pipelines/orders/pause", TOKEN, "POST")[0] == 200
    assert space.ask("/readyz")[0] == 200
    written = space.kubectl("get", "pods,configmaps,statefulsets", "--output=yaml")
    assert TOKEN not in written + space.kubectl("logs", POD)


def test_a_failed_pipeline_and_a_broker_that_is_down_restart_no_pod(
    space: Space, broker: Broker
) -> None:
    orders = space.lake.make_table("orders")
    payments = space.lake.make_table("payments")
    state = {"ephemeral": True}
    probes = {
        "liveness": {"periodSeconds": 2, "failureThreshold": 2},
        "readiness": {"periodSeconds": 1},
    }
    with Topics(broker.plain) as topics:
        sink = kafka_sink(broker.plain, topics.create())
        sections = {
            "orders": table_section("orders", **sink),
            "payments": table_section("payments"),
        }
        space.install(make_values(sections, state=state, probes=probes))
        broker.stop()
        orders.change()
        time.sleep(8)
        assert (space.ask("/readyz")[0], space.restarts()) == (200, 0)
        broker.start()
        space.lake.await_delivery("orders", space.words())
        log = payments.folder / "_delta_log"
        newest = max(log.glob("*.json"))
        (log / f"{int(newest.stem) + 1:020}.json").write_text("not a commit\n")
        space.kubectl("wait", "pod", POD, "--for=condition=Ready=false", "--timeout=300s")
        status, text = space.ask("/readyz")
        assert (status, "payments" in text) == (503, True)
        time.sleep(6)
        assert space.restarts() == 0
        # A pod that is not ready does not hold back the upgrade that mends it.
        space.install(make_values({"orders": sections["orders"]}, state=state, probes=probes))
        assert space.ask("/readyz")[0] == 200


def test_executors_of_spark_are_pods_and_one_that_dies_loses_nothing(
    space: Space,
) -> None:
    image = f"docker.io/library/tailerd-java:{__version__}"
    space.cluster.load_image(engine.build_image("17"), image)
    space.add_volume(f"state-{POD}", space.lake.folder / "state")
    orders = space.lake.make_table("orders")
    values = {"config": {"spark": {"master": f"k8s://{space.cluster.address}"}}}
    space.install(values, "--values", EXECUTORS)
    space.lake.await_delivery("orders", space.words())
    for end in ("delete", "kill"):
        [executor] = space.executors()
        with keep_changing(orders):
            space.end(executor, end)
        space.lake.await_delivery("orders", space.words())
    assert space.restarts() == 0
    with keep_changing(orders):
        space.end(POD, "delete")
    space.lake.await_delivery("orders", space.words())
    # That of the pod that is gone went with it.
    assert len(space.executors()) == 1


def prepare(name: str, space: Space, broker: Broker, s3: S3Server) -> dict[str, Any]:
    """Make what an example of values names; return the values that lead to servers of this test."""
    orders = space.lake.make_table("orders")
    state = {"guarded": "state-changes-0"}.get(name, f"state-{POD}")
    if name in ("default", "kafka", "guarded"):
        space.add_volume(state, space.lake.folder / "state")
    match name:
        case "bucket":
            s3.admin().create_bucket(Bucket="lake")
            upload(s3, orders.folder, "lake", "orders")
            s3.client("sqs").create_queue(QueueName="tailerd")
            space.add_secret("lake", {"id": ACCESS_KEY, "secret": SECRET_KEY})
            template = {"sink": {"bootstrap_servers": [broker.plain]}}
            config = {
                "storage": {"endpoint": s3.endpoint},
                "notifications": {"queue": f"{s3.endpoint}/123456789012/tailerd"},
                "discover": {"lake": {"template": template}},
            }
        case "kafka":
            space.add_secret("kafka", {"password": USERS["tailerd"]})
            scram = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "SCRAM-SHA-256"}
            sink = {"bootstrap_servers": [broker.sasl], "producer": scram}
            config = {"tables": {"orders": {"sink": sink}}}
        case "maintenance":
            space.add_claim("keeper-state", space.lake.folder / "state")
            space.apply(manifest("ServiceAccount", "keeper"))
            config = {}
        case "guarded":
            made = make_certificates(space.lake.folder / "certificates")
            pem, authority = made.server.read_text(), made.authority.read_text()
            space.add_secret("changes-tls", {"tls.crt": pem, "tls.key": pem, "ca.crt": authority})
            space.add_secret("changes-token", {"bearer": TOKEN})
            config = {}
        case "discovered":
            space.add_volume(state, space.lake.folder / "state", "50Gi", "fast")
            # The image with Java is not on this cluster.
            return {"config": {"engine": "arrow"}, "image": {"repository": "tailerd", "digest": ""}}
        case _:
            config = {}
    return {"config": config} if config else {}


@pytest.mark.parametrize("values", sorted({*VALUES} - {EXECUTORS}), ids=lambda path: path.stem)
def test_an_example_of_values_becomes_ready_in_a_restricted_namespace(
    values: Path, space: Space, broker: Broker, s3: S3Server
) -> None:
    with Topics(broker.plain) as topics:
        topics.create("lake.orders")
        space.install(prepare(values.stem, space, broker, s3), "--values", values)
        kinds = "networkpolicies,poddisruptionbudgets,servicemonitors,podmonitors,prometheusrules"
        found = space.kubectl("get", kinds, "--output=name").split()
        is_guarded = values.stem != "maintenance"
        assert (
            ("networkpolicy" in str(found)) == ("poddisruptionbudget" in str(found)) == is_guarded
        )
        assert "Succeeded" in space.helm("test", RELEASE, "--timeout=300s")
