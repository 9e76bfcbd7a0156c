"""PostgreSQL servers of one test run: Debian's programs, on a socket of their own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from tests.kafka.process import ServerProcess
from tests.waiting import PATIENCE_SECONDS

USER = "postgres"
_SETTINGS = {
    "listen_addresses": "",
    # No test stops the machine.
    "fsync": "off",
    "max_connections": "50",
    "shared_buffers": "64MB",
    "autovacuum_naptime": "1h",
}


class PostgresUnavailableError(Exception):
    """PostgreSQL's programs cannot be had here."""


def postgres_programs() -> Path:
    """Return the folder with `initdb` and `postgres`: the newest of Debian's, or that on the path.

    Raises:
        PostgresUnavailableError: There is none.
    """
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda f: int(f.parent.name))
    found = shutil.which("initdb")
    if found is not None:
        folders.insert(0, Path(found).resolve().parent)
    for folder in reversed(folders):
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    raise PostgresUnavailableError("PostgreSQL is not here: apt-get install postgresql.")


class PostgresServer:
    """One server; its folder is removed with `remove`."""

    def __init__(self, **settings: str) -> None:
        self._programs = postgres_programs()
        # The server refuses to run as root, and its user cannot enter folders of pytest. A socket's
        # path has at most 107 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="tailerd-pg-", dir="/tmp"))
        self._as_user: list[str] = []
        if os.geteuid() == 0:
            shutil.chown(self.folder, USER, USER)
            self._as_user = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
        self.folder.chmod(0o755)
        self._settings = {**_SETTINGS, **settings}
        self._process: ServerProcess | None = None
        initdb = [str(self._programs / "initdb"), "-D", str(self.data), "-U", USER]
        options = ["-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
        subprocess.run(
            [*self._as_user, *initdb, *options],
            check=True,
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
        )

    def require_password(self, key_and_certificate: Path) -> None:
        """Take connections from the network with TLS and a password only; before `start`."""
        target = self.data / "server.pem"
        shutil.copy(key_and_certificate, target)
        target.chmod(0o600)
        if self._as_user:
            shutil.chown(target, USER, USER)
        self._settings |= {"ssl": "on", "listen_addresses": "127.0.0.1"}
        self._settings |= dict.fromkeys(("ssl_cert_file", "ssl_key_file"), str(target))
        rules = "local all all trust\nhostssl all all 127.0.0.1/32 scram-sha-256\n"
        (self.data / "pg_hba.conf").write_text(rules)

    @property
    def data(self) -> Path:
        """The server's data."""
        return self.folder / "data"

    def start(self) -> None:
        """Start it, and wait until it accepts connections."""
        options = [f"-c{name}={value}" for name, value in self._settings.items()]
        command = [str(self._programs / "postgres"), "-D", str(self.data), "-k", str(self.folder)]
        log = self.folder / "log"
        self._process = ServerProcess(
            [*self._as_user, *command, *options], log=log, cwd=self.folder
        )
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                self.connect("postgres").close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > until or not self._process.is_running:
                    raise
                time.sleep(0.02)

    def limit_files(self, size_bytes: int | None) -> None:
        """Let no file of new connections grow beyond a size; None: without a limit."""
        assert self._process is not None
        limit = "unlimited" if size_bytes is None else str(size_bytes)
        # The hard limit stays, so that the soft one can be raised again.
        command = ["prlimit", f"--pid={self._process.pid}", f"--fsize={limit}:"]
        subprocess.run([*self._as_user, *command], check=True)

    def stop(self, sent: signal.Signals = signal.SIGINT) -> None:
        """End it: SIGINT ends connections at once, SIGQUIT everything, without a checkpoint."""
        if self._process is not None:
            self._process.end(sent, seconds=30)
            self._process = None

    def remove(self) -> None:
        """Stop it, and remove its folder."""
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def dsn(self, database: str, user: str = USER) -> str:
        """Return the URL of a database."""
        port = self._settings.get("port", "5432")
        return f"postgresql://{user}@/{database}?host={self.folder}&port={port}"

    def connect(self, database: str, user: str = USER) -> psycopg.Connection[tuple[Any, ...]]:
        """Return a blocking connection of a test."""
        return psycopg.connect(self.dsn(database, user), autocommit=True)

    def new_database(self) -> Database:
        """Return a new, empty database."""
        name = f"test_{uuid.uuid4().hex[:12]}"
        with self.connect("postgres") as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return Database(self, name)


class Database:
    """A database of one test.

    Attributes:
        server, name: Where it is.
        dsn: Its URL.
    """

    def __init__(self, server: PostgresServer, name: str) -> None:
        self.server, self.name = server, name
        self.dsn = server.dsn(name)

    def run(self, statement: str, user: str = USER) -> list[tuple[Any, ...]]:
        """Run statements; return the rows of the last one."""
        with self.server.connect(self.name, user) as connection:
            cursor = connection.execute(statement)
            while cursor.nextset():
                pass
            return [] if cursor.description is None else list(cursor.fetchall())

    def section(self, **fields: object) -> dict[str, object]:
        """Return the section of a sink that mirrors `public.orders` here by `id`."""
        mirror = {"mode": "upsert", "key": ["id"]} if fields.get("mode") != "append" else {}
        return {"kind": "postgres", "dsn": self.dsn, "table": "public.orders", **mirror, **fields}

    def exists(self, table: str) -> bool:
        """Return whether a table exists."""
        return self.run(f"SELECT to_regclass('{table}') IS NOT NULL") == [(True,)]

    def drop(self) -> None:
        """Drop it, with its connections."""
        with self.server.connect("postgres") as connection:
            statement = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)")
            connection.execute(statement.format(sql.Identifier(self.name)))
