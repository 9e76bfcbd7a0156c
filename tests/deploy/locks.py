"""The pins of the image, made with uv: `python -m tests.deploy.locks`.

Three files below `config/locks`, each with the hashes of what it names: `build.txt` makes wheels,
`arrow.txt` is what tailerd needs, the client of schema registries included, and `spark.txt` what
only Spark needs.
"""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "config/locks"
ONLY_FOR_SPARK = frozenset({"pyspark", "py4j"})
EXTRAS = ("azure", "google", "postgres", "registry", "spark")
"""Extras of tailerd that the image has."""
_PYTHON = "3.11"
_PIN = re.compile(r"^([a-z0-9-]+)==(\S+) \\\n(?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+", re.M)
_HEAD = "# Made by `python -m tests.deploy.locks`.\n"


def pins(name: str) -> dict[str, str]:
    """Return the versions that a file pins, by package."""
    return {match[1]: match[2] for match in _PIN.finditer((FOLDER / name).read_text())}


def main() -> None:
    """Write the files anew, with the newest releases that pyproject.toml allows."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    # PySpark comes as a source distribution, which setuptools builds.
    (FOLDER / "build.txt").write_text(_HEAD + _locked("-", text="\n".join([*build, "setuptools"])))
    project = _locked(*(f"--extra={extra}" for extra in EXTRAS), str(ROOT / "pyproject.toml"))
    every = list(_PIN.finditer(project))
    for name, is_spark in (("arrow.txt", False), ("spark.txt", True)):
        chosen = (match[0] for match in every if (match[1] in ONLY_FOR_SPARK) == is_spark)
        (FOLDER / name).write_text(_HEAD + "".join(chosen))


def _locked(*source: str, text: str = "") -> str:
    command = ["uv", "pip", "compile", "-q", "--generate-hashes", "--python-version", _PYTHON]
    command += ["--no-annotate", "--no-header", *source]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    main()
