"""The programs of a cluster, built once by Go: `python -m tests.deploy.programs`."""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
from pathlib import Path

from tests.clouds.servers import cache_folder
from tests.deploy.engine import locked, run

KUBERNETES = "1.34.4"
"""Later releases refuse machines whose cgroups are of version 1."""
ETCD = "3.6.13"
NAMES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl")
_MODULE = "k8s.io/kubernetes"
# A pod's first process: it holds the pod's network.
_PAUSE = """\
package main

import "time"

func main() {
	for {
		time.Sleep(time.Hour)
	}
}
"""


class ProgramsUnavailableError(Exception):
    """The programs cannot be built here; the message says why."""


def build_programs() -> Path:
    """Build what the cache lacks and return the folder of all programs.

    Kubernetes takes two cores about seven minutes.

    Raises:
        ProgramsUnavailableError: Go is missing, or a build failed.
    """
    target = cache_folder() / "bin"
    with locked("programs"):
        missing = [each for each in (*NAMES, "etcd", "pause") if not (target / each).exists()]
        if missing and shutil.which("go") is None:
            text = f"{', '.join(missing)} are not in {target}, and Go, which builds them, is not"
            raise ProgramsUnavailableError(f"{text} on PATH: install Go 1.24 or newer.")
        try:
            with tempfile.TemporaryDirectory() as folder:
                _build(missing, Path(folder), target)
        except RuntimeError as error:
            raise ProgramsUnavailableError(f"A cluster cannot be built: {error}") from error
    return target


def _build(missing: list[str], folder: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    if "pause" in missing:
        (folder / "pause.go").write_text(_PAUSE)
        _go(folder, "build", "-o", target / "pause", "pause.go")
    if "etcd" in missing:
        module = "go.etcd.io/etcd/server/v3"
        (folder / "go.mod").write_text(f"module cluster\n\nrequire {module} v{ETCD}\n")
        _go(folder, "build", "-ldflags=-s -w", "-o", target / "etcd", module)
    if components := [each for each in NAMES if each in missing]:
        _require_kubernetes(folder)
        version = f"-X k8s.io/component-base/version.gitVersion=v{KUBERNETES}"
        packages = [f"{_MODULE}/cmd/{name}" for name in components]
        _go(folder, "build", f"-ldflags=-s -w {version}", "-o", f"{target}/", *packages)


def _require_kubernetes(folder: Path) -> None:
    """Write a module that requires Kubernetes.

    Its own module replaces the staging modules by folders that only its repository has; they are
    published too, as version 0 of the same release.
    """
    found = json.loads(_go(folder, "mod", "download", "-json", f"{_MODULE}@v{KUBERNETES}"))
    text = Path(found["GoMod"]).read_text().replace(f"module {_MODULE}\n", "module cluster\n")
    published = rf"=> \1 v0.{KUBERNETES.partition('.')[2]}"
    text = re.sub(r"=> \./staging/src/(\S+)", published, text)
    (folder / "go.mod").write_text(f"{text}\nrequire {_MODULE} v{KUBERNETES}\n")
    shutil.copy(Path(found["Dir"]) / "go.sum", folder / "go.sum")


def _go(folder: Path, *arguments: str | Path) -> str:
    settings = {"CGO_ENABLED": "0", "GOFLAGS": "-mod=mod -buildvcs=false"}
    return run(["go", *arguments], cwd=folder, **settings)


if __name__ == "__main__":
    try:
        print(f"Programs of a cluster: {build_programs()}.")
    except ProgramsUnavailableError as problem:
        sys.exit(str(problem))
