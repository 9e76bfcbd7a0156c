"""S3 servers of one test run: moto, which plays it, and versitygw, which keeps files."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import botocore.session
from botocore.config import Config

from tailerd.storage.base import ObjectStore
from tailerd.storage.io_thread import io_thread
from tailerd.storage.s3.settings import S3Account, S3Settings
from tailerd.storage.s3.store import S3Store
from tailerd.storage.stores import Stores, StoreSettings
from tests.kafka.certificates import Certificates
from tests.kafka.ports import free_port
from tests.kafka.process import ServerProcess
from tests.waiting import PATIENCE_SECONDS

ACCESS_KEY = "tailerd-test"
SECRET_KEY = "tailerd-test-secret"
_MOTO = Path(__file__).with_name("moto_server.py")
_MOTO_PAGE_NAMES = 200


class S3ServerUnavailableError(Exception):
    """The server's program cannot be had here."""


def versitygw_program() -> Path:
    """Return the program of versitygw.

    Found at $TAILERD_VERSITYGW, on the path, or where `.ci/run` builds it.

    Raises:
        S3ServerUnavailableError: It is at none of them.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    locations = [
        os.environ.get("TAILERD_VERSITYGW"),
        shutil.which("versitygw"),
        str(cache / "tailerd" / "bin" / "versitygw"),
    ]
    for location in locations:
        if location and os.access(location, os.X_OK):
            return Path(location)
    raise S3ServerUnavailableError(
        "versitygw is not here: go install github.com/versity/versitygw/cmd/versitygw@v1.8.0,"
        " or set TAILERD_VERSITYGW."
    )


async def list_names(store: ObjectStore, folder: str) -> list[str]:
    """Return the names in a folder."""
    return [meta.name async for meta in store.list_from(folder)]


class S3Server:
    """One server on a loopback port, with a bucket for each test."""

    def __init__(
        self,
        name: str,
        command: list[str],
        port: int,
        folder: Path,
        *,
        page_names: int = 1000,
        authority: Path | None = None,
    ) -> None:
        """Prepare; `start` starts it. With an `authority` it speaks TLS only."""
        self.name = name
        self.port = port
        self.page_names = page_names
        """How many names it answers to one request for a listing."""
        self.scheme = "s3"
        self.host = "127.0.0.1"
        self._authority = authority
        self._command = command
        self._folder = folder
        self._process: ServerProcess | None = None
        self._own_client: Any = None

    @classmethod
    def moto(cls, folder: Path, port: int = 0, host: str = "127.0.0.1") -> S3Server:
        """Return a server that keeps everything in memory, and does not look at signatures.

        Args:
            folder: Of its log.
            port: Chosen by default.
            host: Address of this machine at which clients find it.
        """
        port = port or free_port()
        # A thousand files, for a listing's second page, take it seconds.
        paged = ["env", f"MOTO_S3_DEFAULT_MAX_KEYS={_MOTO_PAGE_NAMES}"]
        words = [*paged, sys.executable, str(_MOTO), "-H", host, "-p", str(port)]
        server = cls("moto", words, port, folder, page_names=_MOTO_PAGE_NAMES)
        server.host = host
        return server

    @classmethod
    def versitygw(cls, folder: Path, certificates: Certificates | None = None) -> S3Server:
        """Return a server that keeps files in a folder, and checks everything.

        Args:
            certificates: Whose authority clients must trust, as it speaks TLS then.

        Raises:
            S3ServerUnavailableError: Its program is not here.
        """
        port = free_port()
        data = folder / "data"
        tls: list[str] = []
        authority = None
        if certificates is not None:
            authority = certificates.authority
            # Key and certificate are in one file.
            tls = ["--cert", str(certificates.server), "--key", str(certificates.server)]
        # Its other way to replace a file links the new one under a name that listings show.
        words = [
            *(str(versitygw_program()), "--port", f"127.0.0.1:{port}", "--quiet", "--keep-alive"),
            *("--access", ACCESS_KEY, "--secret", SECRET_KEY, *tls, "posix", "--disableotmp"),
            str(data),
        ]
        return cls("versitygw", words, port, folder, authority=authority)

    @property
    def endpoint(self) -> str:
        """Its URL."""
        return f"{'https' if self._authority else 'http'}://{self.host}:{self.port}"

    def environment(self, endpoint: str = "") -> dict[str, str]:
        """Return what commands need to know, as the SDKs read it."""
        return {
            "AWS_ENDPOINT_URL": endpoint or self.endpoint,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def account(self, endpoint: str = "") -> S3Account:
        """Return how buckets are reached, here or at a proxy's address."""
        return S3Account(
            endpoint=endpoint or self.endpoint,
            region="us-east-1",
            access_key_id=ACCESS_KEY,
            secret_access_key=SECRET_KEY,
        )

    def settings(self, endpoint: str = "") -> S3Settings:
        """Return settings with this account for every bucket."""
        return S3Settings(default=self.account(endpoint))

    def stores(self, endpoint: str = "") -> Stores:
        """Return stores with this account for every bucket."""
        return Stores(StoreSettings((("s3", self.settings(endpoint)),)))

    def url_at(self, port: int) -> str:
        """Return its URL behind a proxy at that port."""
        return f"http://127.0.0.1:{port}"

    def store(self, endpoint: str = "", **fields: Any) -> S3Store:
        """Return the store of all its buckets; `fields` replace some of the account."""
        return S3Store(S3Settings(default=replace(self.account(endpoint), **fields)))

    def start(self) -> None:
        """Start, and wait until it answers."""
        (self._folder / "data").mkdir(parents=True, exist_ok=True)
        log = self._folder / f"{self.name}.log"
        self._process = ServerProcess(self._command, log=log, cwd=self._folder)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                socket.create_connection((self.host, self.port), timeout=1).close()
                return
            except OSError:
                if not self._process.is_running or time.monotonic() > deadline:
                    raise RuntimeError(f"{self.name} did not start: {log.read_text()}") from None
                time.sleep(0.05)

    def new_bucket(self) -> str:
        """Make a bucket and return its name."""
        name = f"b-{secrets.token_hex(6)}"
        self.admin().create_bucket(Bucket=name)
        return name

    def put(self, bucket: str, key: str, body: bytes) -> None:
        """Put a file, past every proxy; threads may do so side by side."""
        self.admin().put_object(Bucket=bucket, Key=key, Body=body)

    def delete(self, bucket: str, key: str) -> None:
        """Delete a file, past every proxy."""
        self.admin().delete_object(Bucket=bucket, Key=key)

    def names(self, folder: str) -> list[str]:
        """Return the names in `bucket/prefix`."""
        return io_thread().call(list_names(self.store(), folder))

    def section(self, endpoint: str = "") -> dict[str, Any]:
        """Return the section `storage` of a configuration that reaches it."""
        keys = {"access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY}
        return {"endpoint": endpoint or self.endpoint, "region": "us-east-1", **keys}

    def stop(self) -> None:
        """Stop it; what it kept in memory is gone."""
        if self._process is not None:
            self._process.end(signal.SIGTERM, seconds=5)

    def admin(self) -> Any:
        """Return one vendor's client for S3; threads may share it."""
        if self._own_client is None:
            self._own_client = self.client()
        return self._own_client

    def client(self, service: str = "s3") -> Any:
        """Return the vendor's own blocking client, to look at what ours did."""
        session = botocore.session.Session()
        return session.create_client(
            service,
            region_name="us-east-1",
            endpoint_url=self.endpoint,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            verify=None if self._authority is None else str(self._authority),
            config=Config(
                s3={"addressing_style": "path"},
                max_pool_connections=50,
                # A checksum behind the body goes over TLS in chunks, whose last bytes versitygw at
                # times takes for the head of the next request.
                request_checksum_calculation="when_required",
            ),
        )


def build_versitygw() -> int:
    """Build versitygw into the cache where it is not there; for `.ci/run`."""
    try:
        print(f"There already: {versitygw_program()}.")
    except S3ServerUnavailableError:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        target = cache / "tailerd" / "bin"
        target.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            ["go", "install", "github.com/versity/versitygw/cmd/versitygw@v1.8.0"],
            env={**os.environ, "GOBIN": str(target)},
            check=False,
        )
        return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(build_versitygw())
