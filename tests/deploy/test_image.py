"""The recipe of the container image: read, and its own steps run in a folder of their own.

No container engine runs where this is developed. What needs one, or root (the base image, Debian's
packages, the user), is read only.
"""

from __future__ import annotations

import fnmatch
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from tailerd import __version__
from tests.deploy.locks import EXTRAS, FOLDER, ONLY_FOR_SPARK, pins
from tests.deploy.recipe import ROOT, read_recipe

# Installing what is in the image takes a minute: one worker does.
pytestmark = pytest.mark.xdist_group("image")

RECIPE = read_recipe()
BUILD, RUNTIME = RECIPE.stages
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
BASE_PYTHON = Path(sys.base_prefix) / f"bin/python3.{sys.version_info.minor}"
OURS = re.compile(r"(?<![\w.])/(?=(?:opt|wheels|src|etc/tailerd|var/lib/tailerd)\b)")
CONFIG = """\
engine: arrow
state: state
http: {{listen: "127.0.0.1:{port}"}}
tables: {{orders: {{path: demo, create: demo, from: snapshot, sink: {{kind: console}}}}}}
"""


def test_two_stages_stand_on_one_base_of_one_release() -> None:
    assert [stage.name for stage in RECIPE.stages] == ["build", "runtime"]
    assert {stage.base for stage in RECIPE.stages} == {"${PYTHON_IMAGE}"}
    base = RECIPE.arguments["PYTHON_IMAGE"]
    assert re.fullmatch(r"python:3\.11\.\d+-slim-[a-z]+(@sha256:[0-9a-f]{64})?", base)


def test_it_runs_as_the_user_that_the_chart_names() -> None:
    user = RUNTIME.last("USER")
    pod = (ROOT / "helm/templates/_pod.tpl").read_text()
    assert user == "10001:10001"
    for line in ("runAsUser: 10001", "runAsGroup: 10001", "workingDir: /var/lib/tailerd"):
        assert line in pod
    names = [name for name, _ in RUNTIME.steps]
    assert "RUN" not in names[names.index("USER") :], "nothing is made after root is given up"
    assert RUNTIME.last("WORKDIR") == "/var/lib/tailerd"
    assert "USER" not in [name for name, _ in BUILD.steps]


def test_tini_hands_signals_on_and_the_chart_starts_the_same() -> None:
    assert RUNTIME.words("ENTRYPOINT") == ["tini", "--", "tailerd"]
    assert any("tini=" in step for step in RUNTIME.all("RUN"))
    assert RUNTIME.last("STOPSIGNAL") == "SIGTERM"
    template = (ROOT / "helm/templates/_pod.tpl").read_text()
    [arguments] = re.findall(r"args: \[(.*)\]", template)
    assert arguments.split(", ") == RUNTIME.words("CMD")


def test_labels_tell_what_it_is() -> None:
    labels = RUNTIME.pairs("LABEL")
    prefix = "org.opencontainers.image."
    assert {name.removeprefix(prefix) for name in labels} >= {
        "title", "description", "version", "revision", "licenses", "base.name",
    }  # fmt: skip
    assert labels[f"{prefix}licenses"] == PROJECT["project"]["license"]
    assert f"VERSION={__version__}" in RUNTIME.all("ARG")
    declared = {text.partition("=")[0] for text in RUNTIME.all("ARG")}
    used = set(re.findall(r"\$\{(\w+)\}", " ".join(labels.values())))
    assert used <= declared, "an argument counts only in the stage that declares it"


def allowed(source: str) -> bool:
    """Tell whether .dockerignore sends a path to the builder; the last line that fits decides."""
    is_allowed = True
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.removeprefix("!")
        parents = [source, *(str(parent) for parent in Path(source).parents)][:-1]
        fits = any(fnmatch.fnmatch(path, pattern.removeprefix("**/")) for path in parents)
        if fits and not line.startswith("#"):
            is_allowed = line.startswith("!")
    return is_allowed


def test_every_source_of_a_copy_exists_and_is_sent_and_nothing_else() -> None:
    sources = []
    for stage in RECIPE.stages:
        for text in stage.all("COPY"):
            words = shlex.split(text)
            if words[0].startswith("--from="):
                assert words[0].removeprefix("--from=") in {each.name for each in RECIPE.stages}
            else:
                sources += words[:-1]
    assert {"tailerd", "pyproject.toml"} <= set(sources)
    for source in sources:
        assert (ROOT / source).exists()
        assert allowed(source)
    for source in (".git/config", "tests/conftest.py", "tailerd/__pycache__/x.pyc", ".env"):
        assert not allowed(source)


def test_whatever_is_installed_is_pinned() -> None:
    for step in (*BUILD.all("RUN"), *RUNTIME.all("RUN")):
        for command in re.findall(r"pip (?:--python \S+ )?(?:install|wheel) [^&;]*", step):
            is_ours = " . " in command
            assert is_ours or "--require-hashes" in command or "--no-index" in command
            assert "--no-deps" in command or "build.txt" in command
        for words in re.findall(r"apt-get install [^&;]*", step):
            assert "--no-install-recommends" in words
            packages = [word for word in words.split()[2:] if not word.startswith(("-", "$"))]
            assert all("=" in package for package in packages)


def test_the_locks_have_every_dependency_at_a_version_that_fits() -> None:
    arrow, spark, build = (pins(f"{name}.txt") for name in ("arrow", "spark", "build"))
    again = "run `python -m tests.deploy.locks`"
    extras = PROJECT["project"]["optional-dependencies"]
    needed = [
        *PROJECT["project"]["dependencies"],
        *(text for name in EXTRAS for text in extras[name]),
    ]
    for text in needed:
        expected = Requirement(text)
        found = {**arrow, **spark}.get(expected.name.replace("_", "-").lower())
        assert found is not None, f"{expected.name} is not locked; {again}"
        assert expected.specifier.contains(found), f"{expected} is locked at {found}; {again}"
    for text in PROJECT["build-system"]["requires"]:
        assert Requirement(text).specifier.contains(build[Requirement(text).name]), again
    assert set(spark) == ONLY_FOR_SPARK
    for path in FOLDER.iterdir():
        named = re.findall(r"^([a-z0-9-]+)==", path.read_text(), re.MULTILINE)
        assert len(named) == len(pins(path.name)), "each pin has its hashes"


class ImageRoot:
    """A folder that stands for the root of the image's filesystem."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def moved(self, text: str) -> str:
        """Return a text with the image's own folders below this one."""
        return OURS.sub(f"{self.root}/", text)

    def environment(self, **more: str) -> dict[str, str]:
        """Return the image's environment, as if nothing of this process's were there."""
        image = {k: self.moved(v) for k, v in RUNTIME.pairs("ENV").items()}
        path = image["PATH"].replace("$PATH", "/usr/bin:/bin")
        return {**image, "PATH": path, "HOME": str(self.root / "tmp"), **more}

    def entry(self, *arguments: str) -> list[str]:
        """Return the command that the image starts."""
        words = RUNTIME.words("ENTRYPOINT")
        words = words if shutil.which("tini") else words[2:]
        command = [*words, *(self.moved(each) for each in arguments or RUNTIME.words("CMD"))]
        return [
            str(self.root / "opt/tailerd/bin/tailerd") if w == "tailerd" else w for w in command
        ]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ImageRoot]:
    """Run the build stage for the image without Java, with its own COPY and RUN steps."""
    found = ImageRoot(tmp_path_factory.mktemp("image"))
    source = found.root / "src"
    for folder in (source, *(found.root / name for name in ("bin", "tmp", "etc/tailerd"))):
        folder.mkdir(parents=True)
    (found.root / "var/lib/tailerd").mkdir(parents=True)
    kept = {k: v for k, v in os.environ.items() if k.startswith("PIP_") or k.endswith("_proxy")}
    environment = {
        **kept,
        **BUILD.pairs("ENV"),
        "PATH": f"{found.root / 'bin'}:/usr/bin:/bin",
        "HOME": str(Path.home()),
        "JAVA": "none",
    }
    # The base image calls it so; here it may be `python3` only.
    python = found.root / "bin/python"
    python.write_text(f'#!/bin/sh\nexec "{BASE_PYTHON}" "$@"\n')
    python.chmod(0o755)
    for name, text in BUILD.steps:
        if name == "COPY":
            *files, target = shlex.split(text)
            for file in files:
                copy(ROOT / file, source / target / ("" if target.endswith("/") else "."))
        elif name == "RUN":
            step = subprocess.run(
                ["/bin/sh", "-c", found.moved(text)],
                cwd=source,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            assert step.returncode == 0, f"{text}\n{step.stdout}\n{step.stderr}"
    shutil.rmtree(source)
    shutil.rmtree(found.root / "wheels")
    shutil.rmtree(found.root / "opt/build")
    yield found
    shutil.rmtree(found.root)


def copy(file: Path, target: Path) -> None:
    """Copy as the builder does: a file into a folder, of a folder what is in it."""
    if file.is_dir():
        ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
        shutil.copytree(file, target, dirs_exist_ok=True, ignore=ignored)
    else:
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)


def run(image: ImageRoot, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        image.entry(*arguments),
        cwd=image.root / "var/lib/tailerd",
        env=image.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.full
@pytest.mark.slow
def test_what_was_installed_starts_and_brings_no_pip_and_no_spark(image: ImageRoot) -> None:
    done = run(image, "--version")
    assert (done.returncode, __version__ in done.stdout) == (0, True), done.stderr
    packages = next((image.root / "opt/tailerd/lib").glob("python3*/site-packages"))
    names = {path.name.lower() for path in packages.iterdir()}
    assert "tailerd" in names
    assert not names & {"pip", "pyspark", "py4j", "setuptools"}
    megabytes = sum(f.stat().st_size for f in packages.rglob("*") if f.is_file()) / 1e6
    print(f"image: {megabytes:.0f} MB of packages")
    assert megabytes < 530


@pytest.mark.full
@pytest.mark.slow
def test_without_spark_its_engine_is_refused_with_the_way_out(image: ImageRoot) -> None:
    config = image.root / "etc/tailerd/spark.yaml"
    text = CONFIG.format(port=0).replace("engine: arrow", "engine: spark")
    config.write_text(text)
    done = run(image, "run", "--config", str(config), "--once")
    assert done.returncode == 2, done.stderr
    assert "The engine of tables.orders is spark, but PySpark is not installed" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.full
@pytest.mark.slow
def test_the_entry_serves_is_healthy_stops_on_sigterm_and_leaves_its_install_alone(
    image: ImageRoot,
) -> None:
    before = sorted(path for path in (image.root / "opt").rglob("*"))
    port = free_port()
    (image.root / "etc/tailerd/tailerd.yaml").write_text(CONFIG.format(port=port))
    url = RUNTIME.pairs("ENV")["HEALTH_URL"].replace("9464", str(port))
    environment = image.environment(HEALTH_URL=url)
    health = [str(image.root / "opt/tailerd/bin/python"), *RUNTIME.words("HEALTHCHECK")[1:]]
    folder = image.root / "var/lib/tailerd"
    assert subprocess.run(health, env=environment, check=False, capture_output=True).returncode != 0
    with subprocess.Popen(
        image.entry(), cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as daemon:
        try:
            deadline = time.monotonic() + 60
            while subprocess.run(
                health, env=environment, check=False, capture_output=True
            ).returncode:
                assert daemon.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.2)
            daemon.send_signal(signal.SIGTERM)
            _, log = daemon.communicate(timeout=60)
        finally:
            if daemon.poll() is None:
                daemon.kill()
    assert daemon.returncode == 0, log.decode()
    assert sorted(path for path in (image.root / "opt").rglob("*")) == before
    assert (folder / "state").is_dir()


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def test_what_the_chart_runs_needs_nothing_that_the_image_does_not_give() -> None:
    values = yaml.safe_load((ROOT / "helm/values.yaml").read_text())
    assert str(values["http"]["port"]) == RUNTIME.last("EXPOSE")
    assert RUNTIME.last("VOLUME") == '["/var/lib/tailerd"]'
