"""Container images of this checkout: buildah builds them, podman runs them, the cache keeps layers.

`python -m tests.deploy.engine` builds both. The base is made by debootstrap from the machine's own
Debian mirror, under the name that the Dockerfile has, as Docker Hub is not reachable everywhere.
"""

from __future__ import annotations

import fcntl
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tailerd import __version__
from tests.clouds.servers import cache_folder

ROOT = Path(__file__).resolve().parents[2]
BASE = re.findall(r"^ARG PYTHON_IMAGE=(\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)[0]
SUITE = BASE.rpartition("-")[2]
USER = 10001
TAGS = {"none": f"tailerd:{__version__}-arrow", "17": f"tailerd:{__version__}"}
"""Name of each image, by the build argument JAVA."""
PACKAGES = "buildah podman runc conmon debootstrap debian-archive-keyring"
_PROGRAMS = ("buildah", "podman", "runc", "conmon", "debootstrap")
_INCLUDED = "python3,python3-venv,ca-certificates"
_KEPT_HOURS = 24
# What the base from Docker Hub has: `python`, and a pip that the image must lose.
_LIKE_THE_BASE = """\
ln -s /usr/bin/python3 /usr/local/bin/python
python3 -m venv /tmp/venv
cp -r /tmp/venv/lib/python3*/site-packages/pip* /usr/local/lib/python3*/dist-packages/
cp /tmp/venv/bin/pip /usr/local/bin/pip
rm -rf /tmp/venv /var/cache/apt/*.bin /var/cache/apt/archives/*.deb /var/lib/apt/lists/*
update-ca-certificates
"""


class EngineUnavailableError(Exception):
    """Images cannot be built or run here; the message says which step failed, and how."""


def run(command: Sequence[str | Path], *, cwd: Path | None = None, **environment: str) -> str:
    """Run a command and return its output without surrounding spaces.

    Raises:
        RuntimeError: It failed, with the end of its output, or its program is missing.
    """
    words = [str(each) for each in command]
    if shutil.which(words[0]) is None:
        raise RuntimeError(f"{words[0]} cannot be found on PATH")
    done = subprocess.run(
        words,
        cwd=cwd,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        end = "\n".join((done.stdout + done.stderr).splitlines()[-30:])
        raise RuntimeError(f"`{' '.join(words)}` exited with {done.returncode}:\n{end}")
    return done.stdout.strip()


def buildah(*arguments: str | Path) -> str:
    """Run buildah with the store in the cache."""
    return run(["buildah", *_store(), *arguments])


def podman_words(*arguments: str | Path) -> list[str]:
    """Return a command of podman with the store in the cache."""
    # crun, the default, refuses machines with both versions of cgroups.
    options = ["--runtime=runc", "--cgroup-manager=cgroupfs", "--events-backend=none"]
    return ["podman", *_store(), *options, *map(str, arguments)]


def podman(*arguments: str | Path) -> str:
    """Run podman to its end and return its output."""
    # Its timers for health checks are systemd's, which is not everywhere.
    return run(podman_words(*arguments), DISABLE_HC_SYSTEMD="true")


def run_words(image: str, *arguments: str | Path, volumes: Mapping[Path, str]) -> list[str]:
    """Return the options of `podman run` and `podman create` for a read-only container.

    Args:
        image: Its id.
        arguments: Of the entry point; none for those of the image.
        volumes: Folder or file here -> path in the container, `:ro` included.
    """
    # A process without CAP_SYS_RESOURCE cannot raise the limits that podman sets by default.
    limits = ["--ulimit=nofile=4096:4096", "--ulimit=nproc=4096:4096"]
    mounts = [f"--volume={here}:{there}" for here, there in volumes.items()]
    tmp = ["--read-only", "--read-only-tmpfs=false", "--tmpfs=/tmp", "--network=host"]
    return [*limits, *tmp, *mounts, image, *map(str, arguments)]


@functools.cache
def build_image(java: str) -> str:
    """Build an image of this checkout, or find it built.

    Args:
        java: The Dockerfile's argument of that name: "17", or "none" for the image without Spark.

    Returns:
        The image's id.

    Raises:
        EngineUnavailableError: No engine can run here.
        RuntimeError: The Dockerfile does not build.
    """
    _check_programs()
    with locked("containers"), tempfile.TemporaryDirectory() as folder:
        # Containers of builds that were killed.
        buildah("rm", "--all")
        _prepare_base()
        pip = cache_folder() / "containers" / "pip"
        pip.mkdir(exist_ok=True)
        buildah(
            *("build", "--isolation=chroot", "--pull-never", "--layers", "--format=docker"),
            *(f"--volume={pip}:/root/.cache/pip", f"--build-arg=JAVA={java}"),
            *(f"--iidfile={folder}/id", f"--tag={TAGS[java]}", ROOT),
        )
        # Layers of sources that have changed since.
        podman("image", "prune", "--force", f"--filter=until={_KEPT_HOURS}h")
        return (Path(folder) / "id").read_text().removeprefix("sha256:").strip()


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold a lock that all processes of this machine share, however they end."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    with (cache_folder() / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _store() -> list[str]:
    folder = cache_folder() / "containers"
    return [f"--root={folder / 'storage'}", f"--runroot={folder / 'run'}"]


def _check_programs() -> None:
    if os.geteuid() != 0:
        raise EngineUnavailableError("Images are built and run by root only, and this user is not.")
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    if missing:
        text = f"{', '.join(missing)} cannot be found on PATH: apt-get install {PACKAGES}."
        raise EngineUnavailableError(text)


def _prepare_base() -> None:
    """Make the base image unless the store has it, and see whether a container of it starts."""
    (cache_folder() / "containers").mkdir(parents=True, exist_ok=True)
    try:
        if not buildah("images", "--noheading", "--quiet", "--filter", f"reference={BASE}"):
            _make_base()
        podman("run", "--rm", *run_words(BASE, "python", "--version", volumes={}))
    except RuntimeError as error:
        raise EngineUnavailableError(f"No container engine can run here: {error}") from error


def _make_base() -> None:
    container = buildah("from", "scratch")
    try:
        folder = Path(buildah("mount", container))
        variant = ["--variant=minbase", f"--include={_INCLUDED}"]
        run(["debootstrap", *variant, SUITE, folder, _find_mirror()])
        _copy_settings(folder)
        run(["chroot", folder, "/bin/sh", "-ec", _LIKE_THE_BASE])
        buildah("config", "--cmd=python3", container)
        buildah("commit", "--format=docker", container, BASE)
    finally:
        buildah("rm", container)


def _copy_settings(folder: Path) -> None:
    """Let the base reach registries as this machine does: authorities, apt's and pip's settings."""
    for path in Path("/usr/local/share/ca-certificates").glob("*.crt"):
        shutil.copy(path, folder / path.relative_to("/"))
    settings = run(["apt-config", "dump", "Acquire"])
    (folder / "etc/apt/apt.conf.d/90-machine").write_text(settings + "\n")
    pip = Path("/etc/pip.conf")
    lines = pip.read_text() if pip.exists() else "[global]\n"
    if index := os.environ.get("PIP_INDEX_URL"):
        lines = lines.replace("[global]\n", f"[global]\nindex-url = {index}\n")
    (folder / "etc/pip.conf").write_text(lines)


def _find_mirror() -> str:
    """Return the machine's own mirror of the base's release, or Debian's."""
    pattern = "$(REPO_URI) $(RELEASE) $(COMPONENT)"
    targets = run(["apt-get", "indextargets", "Created-By: Packages", "--format", pattern])
    for line in targets.splitlines():
        uri, release, component = line.split()
        if (release, component) == (SUITE, "main") and "security" not in uri:
            return uri
    return "https://deb.debian.org/debian"


if __name__ == "__main__":
    for argument, tag in TAGS.items():
        try:
            print(f"{tag}: {build_image(argument)}", flush=True)
        except (EngineUnavailableError, RuntimeError) as problem:
            sys.exit(str(problem))
