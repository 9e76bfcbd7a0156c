"""Configurations inside Kubernetes manifests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tailerd.config.manifests import read_manifests
from tailerd.errors import ConfigError

CONFIG = {"tables": {"orders": {"path": "/lake/orders", "sink": {"kind": "console"}}}}


def config_map(config: object = CONFIG, name: str = "tailerd") -> dict[str, object]:
    content = config if isinstance(config, str) else yaml.safe_dump(config)
    return {"kind": "ConfigMap", "metadata": {"name": name}, "data": {"tailerd.yaml": content}}


def workload(env: list[dict[str, object]], mounted: str = "tailerd") -> dict[str, object]:
    pod = {
        "volumes": [{"name": "config", "configMap": {"name": mounted}}],
        "containers": [{"name": "tailerd", "env": env}],
    }
    return {"kind": "StatefulSet", "spec": {"template": {"spec": pod}}}


def read(*manifests: object) -> dict[str, str]:
    configs = read_manifests(yaml.safe_dump_all(manifests), "it")
    return {name: config.engine for name, config in configs.items()}


def test_every_configuration_is_found_among_other_things() -> None:
    second = config_map({**CONFIG, "engine": "arrow"}, "second")
    other = {"kind": "ConfigMap", "metadata": {"name": "other"}, "data": {"a": "b"}}
    assert read(None, other, config_map(), second) == {"tailerd": "auto", "second": "arrow"}


def test_lists_of_manifests_are_looked_into() -> None:
    assert read({"kind": "List", "items": [config_map(), 1]}) == {"tailerd": "auto"}


def test_the_environment_is_that_of_the_pod_and_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILERD__NONSENSE", "1")
    env: list[dict[str, object]] = [{"name": "TAILERD__ENGINE", "value": "arrow"}]
    assert read(config_map(), workload(env)) == {"tailerd": "arrow"}
    assert read(config_map(), workload(env, "another")) == {"tailerd": "auto"}


def test_what_a_secret_holds_counts_as_given() -> None:
    guarded = config_map({**CONFIG, "http": {"read": "token"}})
    secret: dict[str, object] = {"secretKeyRef": {"name": "x", "key": "y"}}
    token: dict[str, object] = {"name": "TAILERD__HTTP__TOKEN", "valueFrom": secret}
    assert read(guarded, workload([token])) == {"tailerd": "auto"}
    with pytest.raises(ConfigError, match=r"tailerd\.yaml of ConfigMap tailerd.*neither token"):
        read(guarded, workload([]))


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("", "no ConfigMap with a file tailerd.yaml among its 0 manifests"),
        ("kind: Secret", "among its 1 manifests"),
        ("- 1\n- 2", "among its 0 manifests"),
        ("{", "is not valid YAML"),
        ("a: !!python/object:os.system {}", "is not valid YAML"),
        ("[" * 3000, "is not valid YAML"),
        ("kind: ConfigMap\ndata: 1", "among its 1 manifests"),
        ("kind: ConfigMap\ndata: {tailerd.yaml: 1}", "among its 1 manifests"),
        ("x" * (17 * 1024**2), "larger than 16 MiB"),
    ],
    ids=lambda text: text[:20],
)
def test_what_holds_no_configuration_is_told(text: str, reported: str) -> None:
    with pytest.raises(ConfigError, match=reported):
        read_manifests(text, "it")


@pytest.mark.parametrize(
    "pod",
    [
        {"containers": [1, {"env": 1}, {"env": [1, {}]}], "volumes": "x"},
        {"containers": [{}], "volumes": [1, {"configMap": 1}, {"configMap": {"name": "tailerd"}}]},
    ],
)
def test_pods_of_other_shapes_are_passed_over(pod: dict[str, object]) -> None:
    assert read(config_map(), {"kind": "Pod", "spec": pod}) == {"tailerd": "auto"}


def run(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tailerd", "validate", *arguments]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False)


def test_the_command_reads_a_file_and_standard_input(tmp_path: Path) -> None:
    text = yaml.safe_dump(config_map())
    (tmp_path / "m.yaml").write_text(text)
    line = "orders: /lake/orders; engine auto, sink console; not checked\n"
    for arguments in (["-"], [str(tmp_path / "m.yaml")]):
        done = run("--from-manifests", *arguments, text=text)
        assert (done.returncode, done.stdout, done.stderr) == (0, line, "")


@pytest.mark.parametrize(
    "arguments",
    [["x.yaml", "--from-manifests", "-"], ["--config", "x.yaml", "--from-manifests", "-"]],
)
def test_the_command_wants_one_of_both(arguments: list[str]) -> None:
    done = run(*arguments)
    assert (done.returncode, "either a file or --from-manifests" in done.stderr) == (2, True)
