"""What the image with Java has from others: `python -m tests.deploy.sbom FOLDER`.

Writes `sbom.json` (CycloneDX) and `licences.md`, of the packages that `config/locks` pins.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.clouds.servers import cache_folder
from tests.deploy.engine import ROOT, run
from tests.deploy.locks import pins

_MISSING = {"protobuf": ["BSD-3-Clause"]}
"""Licences of packages whose metadata has none, from their file LICENSE."""


def write_sbom(folder: Path) -> None:
    """Write both files of the pinned packages, from a temporary environment."""
    packages = [f"{name}=={version}" for name, version in list_pins().items()]
    wheels = f"--find-links={cache_folder() / 'wheels'}"
    with tempfile.TemporaryDirectory() as temporary:
        python = Path(temporary) / "bin/python"
        run([sys.executable, "-m", "venv", "--without-pip", temporary])
        if shutil.which("uv"):
            command = ["uv", "pip", "install", "--system-certs", "--python", str(python)]
        else:
            command = [sys.executable, "-m", "pip", "--python", str(python), "install"]
        run([*command, "--no-deps", wheels, *packages])
        options = ["--output-reproducible", f"--pyproject={ROOT / 'pyproject.toml'}"]
        tool = [sys.executable, "-m", "cyclonedx_py", "environment", *options]
        run([*tool, f"--output-file={folder / 'sbom.json'}", python])
    components = json.loads((folder / "sbom.json").read_text())["components"]
    lines = ["# Licences of dependencies", "", "| package | version | licence |", "|---|---|---|"]
    for each in sorted(components, key=lambda component: str(component["name"]).lower()):
        lines.append(f"| {each['name']} | {each['version']} | {', '.join(read_licences(each))} |")
    (folder / "licences.md").write_text("\n".join(lines) + "\n")


def list_pins() -> dict[str, str]:
    """Return the versions of all packages in the image with Java, by name."""
    return {**pins("arrow.txt"), **pins("spark.txt")}


def read_licences(component: dict[str, Any]) -> list[str]:
    """Return the licences of a component: identifiers or expressions of SPDX, or names."""
    licences = [entry.get("license", entry) for entry in component.get("licenses", ())]
    found = [each.get("expression") or each.get("id") or each.get("name") for each in licences]
    texts = [str(text).partition("\n")[0].rpartition(" :: ")[2] for text in found if text]
    return list(dict.fromkeys(texts or _MISSING.get(component["name"], [])))


if __name__ == "__main__":
    write_sbom(Path(sys.argv[1]))
