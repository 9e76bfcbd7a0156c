"""The Helm chart, rendered by the real Helm."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from kubernetes_validate.utils import schema_contents
from referencing import Registry, Resource

from tailerd import __version__
from tests.deploy.chart import CHART, ROOT, VALUES, helm, manifests, only, pod_of, rendered
from tests.deploy.values_schema import FILE, with_config
from tests.waiting import PATIENCE_SECONDS

KUBERNETES = ["1.29.0", "1.33.0", "1.37.0"]
CERTIFICATES = "http.tls.secret=x,http.tls.clientCa=true"
OPERATOR = {"PodMonitor", "ServiceMonitor", "PrometheusRule"}
"""Kinds of the Prometheus operator, of which Kubernetes knows no schema."""

by_values = pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)


@functools.cache
def render_chart(values: Path) -> str:
    return rendered("--values", values)


@functools.cache
def validator(version: str, kind: str, api_version: str) -> Any:
    group, _, name = api_version.rpartition("/")
    prefix = f"{group.partition('.')[0]}-" if group else ""
    folder = f"kubernetes-json-schema/v{version}-local-strict"
    schema = schema_contents(f"{folder}/{kind.lower()}-{prefix}{name}.json", version)
    return jsonschema.Draft202012Validator(schema, registry=definitions(version))


@functools.cache
def definitions(version: str) -> Any:
    folder = f"kubernetes-json-schema/v{version}-local-strict"
    resource: Any = Resource.from_contents(schema_contents(f"{folder}/_definitions.json", version))
    return Registry().with_resource("_definitions.json", resource)


def validate(text: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tailerd", "validate", "--from-manifests", "-"]
    return subprocess.run(
        command,
        input=text,
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=PATIENCE_SECONDS,
    )


def make_config(text: str) -> dict[str, Any]:
    [config] = [m for m in manifests(text) if "tailerd.yaml" in m.get("data", {})]
    found: dict[str, Any] = yaml.safe_load(config["data"]["tailerd.yaml"])
    return found


def make_executors(text: str) -> list[dict[str, Any]]:
    """Return the specification of the pods that executors are made from, if any."""
    files = [
        m["data"]["executor.yaml"] for m in manifests(text) if "executor.yaml" in m.get("data", {})
    ]
    return [yaml.safe_load(file)["spec"] for file in files]


def driver_ports(text: str) -> list[str]:
    """Return the ports of the driver that the network policy opens for executors."""
    [_, rule] = only(text, "NetworkPolicy")["spec"]["ingress"]
    return [str(each["port"]) for each in rule["ports"]]


def test_helm_finds_nothing_to_complain_of() -> None:
    for values in VALUES:
        done = helm("lint", "--strict", CHART, "--values", values)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "[WARNING]" not in done.stdout


@pytest.mark.parametrize("version", KUBERNETES)
@by_values
def test_kubernetes_takes_every_manifest(values: Path, version: str) -> None:
    kinds = []
    for manifest in manifests(render_chart(values)):
        if manifest["kind"] not in OPERATOR:
            validator(version, manifest["kind"], manifest["apiVersion"]).validate(manifest)
            kinds.append(manifest["kind"])
    assert {"StatefulSet", "Service", "ConfigMap"} <= set(kinds)


def test_kubernetes_would_refuse_what_it_does_not_know() -> None:
    manifest = only(render_chart(VALUES[0]), "StatefulSet")
    manifest["spec"]["template"]["spec"]["containers"][0]["readOnlyRoot"] = True
    with pytest.raises(jsonschema.ValidationError, match="readOnlyRoot"):
        validator(KUBERNETES[0], "StatefulSet", "apps/v1").validate(manifest)


@by_values
def test_the_rendered_configuration_is_one_that_runs(values: Path) -> None:
    done = validate(render_chart(values))
    assert (done.returncode, done.stderr) == (0, "")
    config = yaml.safe_load(values.read_text()).get("config", {})
    names = [*config.get("tables", {}), *(f"discover.{n}" for n in config.get("discover", {}))]
    assert [line.partition(": ")[0] for line in done.stdout.splitlines()] == names or ["orders"]


@by_values
def test_the_pods_keep_to_the_restricted_standard(values: Path) -> None:
    text = render_chart(values)
    executors = make_executors(text)
    for pod in (pod_of(text), *executors):
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert all("hostPort" not in port for port in container.get("ports", ()))
        kinds = {"configMap", "emptyDir", "secret", "persistentVolumeClaim"}
        assert all(set(volume) - {"name"} <= kinds for volume in pod["volumes"])
    # Only a driver calls the API, and executors never do.
    assert pod_of(text)["automountServiceAccountToken"] is bool(executors)
    assert all(pod["automountServiceAccountToken"] is False for pod in executors)
    roles = [manifest for manifest in manifests(text) if manifest["kind"] == "Role"]
    assert bool(roles) is bool(executors)


def test_executors_are_made_as_their_own_properties_say() -> None:
    text = render_chart(ROOT / "tests/deploy/values/executors.yaml")
    conf = make_config(text)["spark"]["conf"]
    assert (conf["spark.executor.memory"], conf["spark.executor.instances"]) == ("512m", "1")
    [pod] = make_executors(text)
    [container] = pod["containers"]
    assert conf["spark.kubernetes.executor.podTemplateContainerName"] == container["name"]
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts == {"/tmp", "/lake", "/changes"}
    ports = [conf["spark.driver.port"], conf["spark.driver.blockManager.port"]]
    assert driver_ports(text) == ports == ["7078", "7079"]


def test_executors_follow_the_ports_and_the_pull_secrets_of_their_driver() -> None:
    text = rendered(
        "--values",
        ROOT / "tests/deploy/values/executors.yaml",
        "--set=image.pullSecrets={one,two}",
        r"--set-string=config.spark.conf.spark\.driver\.port=4040",
    )
    conf = make_config(text)["spark"]["conf"]
    assert driver_ports(text) == ["4040", "7079"]
    assert (conf["spark.driver.port"], conf["spark.driver.blockManager.port"]) == ("4040", "7079")
    expected = [{"name": "one"}, {"name": "two"}]
    test = only(text, "Pod")["spec"]
    for pod in (pod_of(text), test, *make_executors(text)):
        assert pod["imagePullSecrets"] == expected


@by_values
def test_what_the_pod_mounts_is_there_and_state_is_on_it(values: Path) -> None:
    text = render_chart(values)
    spec, pod = only(text, "StatefulSet")["spec"], pod_of(text)
    [container] = pod["containers"]
    claims = [claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", ())]
    volumes = [volume["name"] for volume in pod["volumes"]] + claims
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert sorted(mounts) == sorted(volumes), "each volume once, each mounted"
    location = make_config(text)["state"]
    assert location.startswith((mounts["state"] + "/", "s3://"))
    assert mounts["config"] + "/tailerd.yaml" in container["args"]


@by_values
def test_probes_and_service_reach_the_port_that_is_listened_on(values: Path) -> None:
    text = render_chart(values)
    [container] = pod_of(text)["containers"]
    config = make_config(text)["http"]
    port = int(config["listen"].rpartition(":")[2])
    assert container["ports"] == [{"name": "http", "containerPort": port, "protocol": "TCP"}]
    scheme = "HTTPS" if "tls" in config else "HTTP"
    for probe, path in (
        ("liveness", "/healthz"),
        ("startup", "/healthz"),
        ("readiness", "/readyz"),
    ):
        found = container[f"{probe}Probe"]["httpGet"]
        assert found == {"path": path, "port": "http", "scheme": scheme}
    service = only(text, "Service")
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert f"{service['metadata']['name']}.lake.svc" in config["hosts"]
    selector = service["spec"]["selector"]
    labels = only(text, "StatefulSet")["spec"]["template"]["metadata"]["labels"]
    assert selector.items() <= labels.items()


def test_secrets_are_named_and_never_held() -> None:
    text = render_chart(CHART.parent / "tests/deploy/values/kafka.yaml")
    [container] = pod_of(text)["containers"]
    [password] = [each for each in container["env"] if "valueFrom" in each]
    assert password["name"] == "TAILERD__TABLES__ORDERS__SINK__PRODUCER__SASL_PLAIN_PASSWORD"
    assert password["valueFrom"] == {"secretKeyRef": {"name": "kafka", "key": "password"}}
    assert "Secret" not in [manifest["kind"] for manifest in manifests(text)]


def test_state_in_a_bucket_needs_no_volume_and_its_keys_come_from_secrets() -> None:
    text = render_chart(ROOT / "tests/deploy/values/bucket.yaml")
    assert make_config(text)["state"] == "s3://lake/tailerd"
    assert "volumeClaimTemplates" not in only(text, "StatefulSet")["spec"]
    pod = pod_of(text)
    assert not [volume for volume in pod["volumes"] if "persistentVolumeClaim" in volume]
    [container] = pod["containers"]
    named = {each["name"]: each["valueFrom"] for each in container["env"] if "valueFrom" in each}
    assert named["TAILERD__STORAGE__SECRET_ACCESS_KEY"] == {
        "secretKeyRef": {"name": "lake", "key": "secret"}
    }
    assert "access_key_id" not in make_config(text)["storage"]


def test_a_changed_configuration_is_a_changed_pod() -> None:
    def checksum(*arguments: str) -> str:
        template = only(rendered(*arguments), "StatefulSet")["spec"]["template"]
        return str(template["metadata"]["annotations"]["checksum/config"])

    assert checksum() == checksum("--set", "podLabels.a=b")
    assert checksum() != checksum("--set", "config.memory=64MiB")


def test_prometheus_and_grafana_get_what_the_repository_has() -> None:
    text = render_chart(ROOT / "tests/deploy/values/guarded.yaml")
    rule = only(text, "PrometheusRule")["spec"]
    assert rule == yaml.safe_load((ROOT / "config/alerts.yaml").read_text())
    [dashboard] = [m for m in manifests(text) if "tailerd.json" in m.get("data", {})]
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    shown = json.loads(dashboard["data"]["tailerd.json"])
    assert shown == json.loads((ROOT / "config/grafana-dashboard.json").read_text())
    [endpoint] = only(text, "ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["authorization"]["credentials"] == {"name": "changes-token", "key": "bearer"}
    assert (endpoint["scheme"], endpoint["tlsConfig"]["serverName"]) == (
        "https",
        "changes.lake.svc",
    )
    pod = only(render_chart(ROOT / "tests/deploy/values/discovered.yaml"), "PodMonitor")
    [endpoint] = pod["spec"]["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["path"], endpoint["scheme"]) == ("http", "/metrics", "http")


@pytest.mark.parametrize(
    ("setting", "key"),
    [
        ("replicas=2", "/replicas"),
        ("podMonitor.enabled=true,serviceMonitor.enabled=true", "/serviceMonitor/enabled"),
        ("http.read=token", "/http/token/secret"),
        (f"{CERTIFICATES},http.read=token,podMonitor.enabled=true", "/http/token/secret"),
        ("http.tls.clientCa=true", "/http/tls/secret"),
        ("http.port=80", "/http/port"),
        ("http.hosts={https://x}", "/http/hosts/0"),
        ("state.existingClaim=x,state.storageClass=y", "/state/storageClass"),
        ("state.existingClaim=x,state.ephemeral=true", "/state/ephemeral"),
        ("state.size=much", "/state/size"),
        ("state.url=s3://lake", "/state/url"),
        ("state.url=/var/state", "/state/url"),
        ("state.url=s3://lake/x,state.existingClaim=y", "/state/existingClaim"),
        ("state.url=s3://lake/x,state.ephemeral=true", "/state/ephemeral"),
        ("state.url=s3://lake/x,config.engine=spark", "/config/engine"),
        ("spark.kubernetes.enabled=true,config.spark.master=local[2]", "/config/spark/master"),
        ("serviceAccount.create=false,serviceAccount.annotations.a=b", "/annotations"),
        ("networkPolicy.enabled=false,networkPolicy.from[0].a=b", "/networkPolicy/from"),
        ("image.digest=latest", "/image/digest"),
        ("secretEnv.A.secret=x", "/secretEnv/A"),
        ("volumes[0].name=state", "/volumes/0/name"),
        ("config.state=/elsewhere", "'state' not allowed"),
        ("config.http.listen=0.0.0.0:1", "'http' not allowed"),
        ("config.tables.orders.path=/x", "/config/tables/orders"),
        ("config.tables.orders.sink.kind=kafka", "/config/tables/orders"),
        ("config.tabels.orders.path=/x", "'tabels' not allowed"),
        ("tables.orders.path=/x", "'tables' not allowed"),
    ],
)
def test_values_that_contradict_each_other_are_refused_by_their_key(setting: str, key: str) -> None:
    done = helm("template", CHART, "--set", setting)
    assert done.returncode != 0
    assert key in done.stderr


def test_a_configuration_that_only_tailerd_can_refuse_is_refused_by_it() -> None:
    table = "config.tables.a.path=/x,config.tables.a.sink.kind=file,config.tables.a.sink.path=/o"
    text = rendered("--set", f"{table},{table.replace('.a.', '.b.')}")
    done = validate(text)
    assert (done.returncode, done.stdout) == (2, "")
    assert "tables.b and tables.a both have the location" in done.stderr


def test_the_schema_of_values_has_the_configuration_as_the_code_has_it() -> None:
    written = json.loads(FILE.read_text())
    assert written == with_config(written), "run `python -m tests.deploy.values_schema`"
    jsonschema.Draft202012Validator.check_schema(written)


def test_every_value_is_in_the_schema_and_every_one_of_the_schema_has_a_default() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    properties = set(json.loads(FILE.read_text())["properties"])
    assert properties - {"global"} == set(values)


def test_chart_and_package_are_of_one_release() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert chart["appVersion"] == __version__
    assert chart["description"] in project["description"]


def test_notes_tell_what_is_open_and_what_is_lost() -> None:
    done = helm("install", "changes", CHART, "--dry-run=client", "--set", "state.ephemeral=true")
    assert done.returncode == 0, done.stderr
    notes = done.stdout.partition("NOTES:")[2]
    assert "demo table" in notes
    assert "Pipelines cannot be paused" in notes
    assert "offsets are lost with the pod" in notes
