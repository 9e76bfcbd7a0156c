"""The real Helm, and the chart as it renders it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm"
VALUES = sorted((Path(__file__).parent / "values").glob("*.yaml"))
KEPT = Path.home() / ".cache/tailerd/bin/helm"


def helm_program() -> str:
    """Return Helm's path; without one the test is skipped, in CI it fails."""
    found = shutil.which("helm") or (str(KEPT) if KEPT.is_file() else None)
    if found is None:
        text = "Helm is not installed (go install helm.sh/helm/v4/cmd/helm@latest)"
        if os.environ.get("CI"):
            pytest.fail(text)
        pytest.skip(text)
    return found


def helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run Helm to its end, whatever that is."""
    command = [helm_program(), *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )


def rendered(*arguments: str | Path) -> str:
    """Return what the chart becomes with options of `helm template`."""
    done = helm("template", "changes", CHART, "--namespace", "lake", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def manifests(text: str) -> Iterator[dict[str, Any]]:
    """Yield the manifests of a rendered chart."""
    for document in yaml.load_all(text, Loader=yaml.CSafeLoader):
        if document is not None:
            yield document


def only(text: str, kind: str) -> dict[str, Any]:
    """Return the one manifest of a kind."""
    [found] = [manifest for manifest in manifests(text) if manifest["kind"] == kind]
    return found


def pod_of(text: str) -> dict[str, Any]:
    """Return the specification of the StatefulSet's pod."""
    pod: dict[str, Any] = only(text, "StatefulSet")["spec"]["template"]["spec"]
    return pod
