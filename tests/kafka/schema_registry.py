"""A real schema registry, Apicurio, on a loopback port: its jars are fetched once and kept.

`python -m tests.kafka.schema_registry` fetches them if need be and says where they are; with
`--port` it runs a registry to try things with. They are kept in $TAILERD_REGISTRY, or in a folder
of the user's cache.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shlex
import shutil
import signal
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from tests.archives import unpack
from tests.kafka.jars import KafkaUnavailableError, java
from tests.kafka.ports import free_port
from tests.kafka.process import ServerProcess
from tests.waiting import PATIENCE_SECONDS

VERSION = "3.0.9"
ARCHIVE = (
    "https://repo1.maven.org/maven2/io/apicurio/apicurio-registry-app/"
    f"{VERSION}/apicurio-registry-app-{VERSION}-all.tar.gz"
)
RUNNER = f"apicurio-registry-app-{VERSION}-runner.jar"
FETCH_SECONDS = 300
STOP_SECONDS = 15


class RegistryError(Exception):
    """The registry ended, or did not answer in time; the message has the end of its log."""


def registry_jars() -> Path:
    """Return the folder of the registry's program, fetched if it is not there yet.

    Safe to call from several processes at once. The folder appears only when it is complete.

    Raises:
        KafkaUnavailableError: There is no Java 17, or the archive cannot be fetched.
    """
    java()
    location = os.environ.get("TAILERD_REGISTRY")
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    home = Path(location) if location else Path(cache) / f"tailerd/apicurio-registry-{VERSION}"
    if (home / RUNNER).exists():
        return home
    home.parent.mkdir(parents=True, exist_ok=True)
    with (home.parent / f".{home.name}.lock").open("w") as lock:
        # Let go by the kernel when the process ends, however it ends.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / RUNNER).exists():
            _fetch(home)
    return home


def _fetch(home: Path) -> None:
    with tempfile.TemporaryDirectory(dir=home.parent, prefix="fetching-") as folder:
        archive, content = Path(folder) / "archive.tar.gz", Path(folder) / "content"
        try:
            with (
                urllib.request.urlopen(ARCHIVE, timeout=FETCH_SECONDS) as answer,
                archive.open("wb") as file,
            ):
                shutil.copyfileobj(answer, file)
            unpack(archive, content, rule="data")
        except (OSError, tarfile.TarError) as error:
            raise KafkaUnavailableError(
                f"The schema registry cannot be fetched from {ARCHIVE}: {error}."
            ) from error
        shutil.rmtree(home, ignore_errors=True)
        content.rename(home)


class SchemaRegistry:
    """A registry in memory that can be started, stopped, paused, and started again on its port."""

    def __init__(self, folder: Path, *, port: int | None = None) -> None:
        """Prepare; its log goes to `folder`."""
        self.port = port or free_port()
        self._log = folder / "registry.log"
        self._folder = folder
        self._process: ServerProcess | None = None

    @property
    def url(self) -> str:
        """Where it speaks Confluent's interface."""
        return f"http://127.0.0.1:{self.port}/apis/ccompat/v7"

    @property
    def is_running(self) -> bool:
        """Whether its process is there."""
        return self._process is not None and self._process.is_running

    def start(self) -> None:
        """Start it, without any schema, and wait until it answers.

        Raises:
            RegistryError: It ended, or did not answer in time.
        """
        home = registry_jars()
        options = shlex.split(os.environ.get("REGISTRY_OPTS", "-XX:TieredStopAtLevel=1"))
        command = [
            *[java(), "-Xmx384m", "-XX:+UseSerialGC", *options],
            *[f"-Dquarkus.http.port={self.port}", "-Dquarkus.http.host=127.0.0.1"],
            *["-Dquarkus.http.access-log.enabled=false", "-jar", str(home / RUNNER)],
        ]
        self._process = ServerProcess(command, log=self._log, cwd=self._folder)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            if not self._process.is_running:
                break
            try:
                with urllib.request.urlopen(f"{self.url}/subjects", timeout=2):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)
        tail = self._log.read_text(errors="replace")[-2000:]
        raise RegistryError(f"The schema registry does not answer:\n{tail}")

    def stop(self) -> None:
        """End it; its schemas are gone."""
        if self._process is not None:
            self._process.end(signal.SIGKILL, seconds=STOP_SECONDS)
            self._process = None

    def pause(self) -> None:
        """Let it hang: it takes connections and answers nothing."""
        if self._process is not None:
            self._process.pause()

    def resume(self) -> None:
        """Go on after `pause`."""
        if self._process is not None:
            self._process.resume()


def main() -> None:
    """Fetch the registry; with a port, run it there until Ctrl-C or SIGTERM."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.kafka.schema_registry", description=main.__doc__
    )
    parser.add_argument("--port", type=int, help="of its interface")
    port = parser.parse_args().port
    if port is None:
        started = time.monotonic()
        print(f"{registry_jars()}, after {time.monotonic() - started:.1f} s")
        return
    # A shell starts what it puts into the background with Ctrl-C ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(0))
    with tempfile.TemporaryDirectory(prefix="tailerd-registry-") as folder:
        registry = SchemaRegistry(Path(folder), port=port)
        try:
            registry.start()
            print(registry.url, flush=True)
            while registry.is_running:
                time.sleep(0.2)
        finally:
            registry.stop()


if __name__ == "__main__":
    main()
