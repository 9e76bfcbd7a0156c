"""Azurite and fake-gcs-server, one of each for a test run."""

from __future__ import annotations

import base64
import datetime as dt
import functools
import hashlib
import hmac
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

from tailerd.storage.base import ObjectStore
from tailerd.storage.io_thread import io_thread
from tailerd.storage.object_store.accounts import Account, AzureAccount, GoogleAccount
from tailerd.storage.stores import Stores, StoreSettings
from tests.conftest import ROOT
from tests.kafka.ports import free_port
from tests.kafka.process import ServerProcess
from tests.s3.servers import list_names
from tests.waiting import PATIENCE_SECONDS

AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
"""Of every Azurite; Microsoft documents them."""
AZURITE = "azurite@3.35.0"
FAKE_GCS = "github.com/fsouza/fake-gcs-server@v1.56.1"
PUBSUB = "cloud.google.com/go/pubsub/v2@v2.9.0"


class CloudServerUnavailableError(Exception):
    """The server's program cannot be had here."""


def cache_folder() -> Path:
    """Return the folder where programs are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tailerd"


def await_port(port: int, process: ServerProcess, log: Path) -> None:
    """Wait until a server answers on a loopback port.

    Raises:
        RuntimeError: It ended, or takes too long; with its log.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if not process.is_running or time.monotonic() > deadline:
                raise RuntimeError(f"it did not start: {log.read_text()}") from None
            time.sleep(0.05)


class CloudServer:
    """One server on a loopback port, with a container for each test."""

    scheme = ""
    page_names = 1000

    def __init__(self, folder: Path, port: int = 0) -> None:
        """Prepare; `start` starts it."""
        self.port = port or free_port()
        self._folder = folder
        self._process: ServerProcess | None = None

    @property
    def endpoint(self) -> str:
        """Its URL."""
        return self.url_at(self.port)

    def url_at(self, port: int) -> str:
        """Return its URL behind a proxy at that port."""
        return f"http://127.0.0.1:{port}"

    def command(self) -> list[str]:
        """Return the command that runs it."""
        raise NotImplementedError

    def account(self, endpoint: str = "") -> Account:
        """Return how containers are reached, here or at a proxy's address."""
        raise NotImplementedError

    def environment(self, endpoint: str = "") -> dict[str, str]:
        """Return the variables with which programs find the server, ours and those of others."""
        raise NotImplementedError

    def new_bucket(self, name: str = "") -> str:
        """Make a container and return its name; by default one of its own."""
        raise NotImplementedError

    def start(self) -> None:
        """Start, and wait until it answers."""
        log = self._folder / f"{type(self).__name__}.log"
        self._process = ServerProcess(self.command(), log=log, cwd=self._folder)
        await_port(self.own_port, self._process, log)

    @property
    def own_port(self) -> int:
        """Return the port of the server itself."""
        return self.port

    def put(self, bucket: str, key: str, body: bytes) -> None:
        """Put a file, past every proxy; threads may do so side by side."""
        io_thread().call(self._own_store.put(f"{bucket}/{key}", body))

    def delete(self, bucket: str, key: str) -> None:
        """Delete a file, past every proxy."""
        io_thread().call(self._own_store.delete(f"{bucket}/{key}"))

    @functools.cached_property
    def _own_store(self) -> ObjectStore:
        return self.store()

    def names(self, folder: str) -> list[str]:
        """Return the names in `bucket/prefix`."""
        return io_thread().call(list_names(self.store(), folder))

    def section(self, endpoint: str = "") -> dict[str, Any]:
        """Return the section `storage` of a configuration that reaches it."""
        raise NotImplementedError

    def stop(self) -> None:
        """Stop it; what it kept is gone."""
        if self._process is not None:
            self._process.end(signal.SIGTERM, seconds=5)

    def store(self, endpoint: str = "", **fields: Any) -> ObjectStore:
        """Return the store of all its containers; `fields` replace some of the account."""
        account = replace(self.account(endpoint), **fields)
        return Stores(StoreSettings(((account.cloud, account),))).locate(f"{self.scheme}://any")[0]

    def stores(self, endpoint: str = "") -> Stores:
        """Return stores with this account."""
        account = self.account(endpoint)
        return Stores(StoreSettings(((account.cloud, account),)))


class Azurite(CloudServer):
    """Microsoft's own emulator, in memory."""

    scheme = "az"
    page_names = 5000

    def command(self) -> list[str]:
        """Return the command.

        Raises:
            CloudServerUnavailableError: Node or Azurite is not here.
        """
        program = cache_folder() / "azurite" / "node_modules" / ".bin" / "azurite-blob"
        if shutil.which("node") is None or not program.exists():
            raise CloudServerUnavailableError(
                "Azurite is not here: python -m tests.clouds.servers, which needs npm."
            )
        options = ("--silent", "--disableTelemetry", "--inMemoryPersistence")
        address = ("--blobHost", "127.0.0.1", "--blobPort", str(self.port))
        return [str(program), *options, "--skipApiVersionCheck", *address]

    def url_at(self, port: int) -> str:
        """Return its URL behind a proxy at that port."""
        return f"http://127.0.0.1:{port}/{AZURE_ACCOUNT}"

    def account(self, endpoint: str = "") -> AzureAccount:
        """Return how containers are reached."""
        return AzureAccount(
            endpoint=endpoint or self.endpoint, account=AZURE_ACCOUNT, account_key=AZURE_KEY
        )

    def section(self, endpoint: str = "") -> dict[str, Any]:
        """Return the section `storage` of a configuration that reaches it."""
        account = {"account": AZURE_ACCOUNT, "account_key": AZURE_KEY}
        return {"azure": {**account, "endpoint": endpoint or self.endpoint}}

    def environment(self, endpoint: str = "") -> dict[str, str]:
        """Return the variables that obstore and delta-rs read."""
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": AZURE_ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": AZURE_KEY,
            "AZURE_STORAGE_ENDPOINT": endpoint or self.endpoint,
            "AZURE_STORAGE_ALLOW_HTTP": "true",
        }

    def new_bucket(self, name: str = "") -> str:
        """Make a container and return its name."""
        name = name or f"b-{secrets.token_hex(6)}"
        date = dt.datetime.now(dt.UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
        headers = f"x-ms-date:{date}\nx-ms-version:2021-08-06\n"
        resource = f"/{AZURE_ACCOUNT}/{AZURE_ACCOUNT}/{name}\nrestype:container"
        text = "PUT" + "\n" * 12 + headers + resource
        digest = hmac.new(base64.b64decode(AZURE_KEY), text.encode(), hashlib.sha256).digest()
        request = urllib.request.Request(
            f"{self.endpoint}/{name}?restype=container",
            method="PUT",
            headers={
                "x-ms-date": date,
                "x-ms-version": "2021-08-06",
                "Authorization": f"SharedKey {AZURE_ACCOUNT}:{base64.b64encode(digest).decode()}",
                "Content-Length": "0",
            },
        )
        urllib.request.urlopen(request, timeout=PATIENCE_SECONDS).close()
        return name


class FakeGcs(CloudServer):
    """fake-gcs-server, in memory, behind a proxy that translates calls which it does not know."""

    scheme = "gs"

    def __init__(
        self, folder: Path, port: int = 0, *, topic: str = "", ignores_start: bool = False
    ) -> None:
        """Prepare.

        Args:
            topic: As project/name; its buckets send notifications to it.
            ignores_start: Listings begin at the first name, whatever is asked.
        """
        super().__init__(folder, port)
        self._options = ["--ignore-start"] if ignores_start else []
        project, _, name = topic.partition("/")
        about = ["-event.pubsub-project-id", project, "-event.pubsub-topic", name]
        self._notifies = [*about, "-event.list", "finalize"] if topic else []
        self._inner = free_port()
        key = {"disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
        self._key = folder / "key.json"
        self._key.write_text(json.dumps(key))
        self._proxy: ServerProcess | None = None

    def start(self) -> None:
        """Start the proxy and the server."""
        super().start()
        words = [sys.executable, "-m", "tests.clouds.gcs_proxy", "--port", str(self.port)]
        words += ["--server", f"http://127.0.0.1:{self._inner}", *self._options]
        log = self._folder / "proxy.log"
        self._proxy = ServerProcess(words, log=log, cwd=ROOT)
        await_port(self.port, self._proxy, log)

    def stop(self) -> None:
        """Stop both."""
        if self._proxy is not None:
            self._proxy.end(signal.SIGTERM, seconds=5)
        super().stop()

    def command(self) -> list[str]:
        """Return the command.

        Raises:
            CloudServerUnavailableError: Its program is not here.
        """
        program = cache_folder() / "bin" / "fake-gcs-server"
        if not program.exists():
            raise CloudServerUnavailableError(
                "fake-gcs-server is not here: python -m tests.clouds.servers, which needs Go."
            )
        options = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(self._inner)]
        return [str(program), *options, "-backend", "memory", *self._notifies]

    @property
    def own_port(self) -> int:
        """Return the port of the server itself."""
        return self._inner

    def account(self, endpoint: str = "") -> GoogleAccount:
        """Return how buckets are reached: by a key that says not to ask Google for a token."""
        return GoogleAccount(
            endpoint=endpoint or self.endpoint, service_account_file=str(self._key)
        )

    def section(self, endpoint: str = "") -> dict[str, Any]:
        """Return the section `storage` of a configuration that reaches it."""
        key = self.account().options()["google_service_account"]
        return {"google": {"service_account_file": key, "endpoint": endpoint or self.endpoint}}

    def environment(self, endpoint: str = "") -> dict[str, str]:
        """Return the variables that obstore and delta-rs read."""
        return {
            "GOOGLE_SERVICE_ACCOUNT": self.account().options()["google_service_account"],
            "GOOGLE_BASE_URL": endpoint or self.endpoint,
        }

    def new_bucket(self, name: str = "") -> str:
        """Make a bucket and return its name."""
        name = name or f"b-{secrets.token_hex(6)}"
        request = urllib.request.Request(
            f"{self.endpoint}/storage/v1/b?project=test",
            data=json.dumps({"name": name}).encode(),
            headers={"Content-Type": "application/json"},
        )
        urllib.request.urlopen(request, timeout=PATIENCE_SECONDS).close()
        return name


def prepare() -> None:
    """Install the servers into the cache where they are not there; for `.ci/run`."""
    cache = cache_folder()
    if not (cache / "azurite" / "node_modules").exists():
        folder = str(cache / "azurite")
        words = ["npm", "install", "--no-audit", "--no-fund", "--prefix", folder, AZURITE]
        subprocess.run(words, check=True)
    if not (cache / "bin" / "fake-gcs-server").exists():
        environment = {**os.environ, "GOBIN": str(cache / "bin")}
        subprocess.run(["go", "install", FAKE_GCS], env=environment, check=True)
    if not (cache / "bin" / "pubsub").exists():
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(ROOT / "tests" / "clouds" / "pubsub" / "main.go", folder)
            for step in (["mod", "init", "pubsub"], ["get", PUBSUB], ["mod", "tidy"]):
                subprocess.run(["go", *step], cwd=folder, check=True)
            program = str(cache / "bin" / "pubsub")
            subprocess.run(["go", "build", "-o", program, "."], cwd=folder, check=True)


if __name__ == "__main__":
    prepare()
