"""Runs `tailerd` and Spark's Python processes without starting Python a thousand times.

A process that has loaded everything, and has one thread, forks for each command. A client
connects, passes the arguments, working folder, environment and its standard streams, reads the
number of the process, and later how it ended. `forked_popen.py` is such a client for
`subprocess`, `fork_client.py` one that Spark starts.

Spark starts `python -m pyspark.daemon` for each kind of worker, and each worker loads pandas, Arrow
and this package again: a second of a processor. Forked from here they have them. When Spark ends
such a client, the process it stands for gets SIGTERM.

    python -m tests.fork_server SOCKET
"""

from __future__ import annotations

import atexit
import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import botocore.session

import tailerd.cli
from tailerd.registry import plugged_in
from tailerd.storage.s3 import connection
from tests.forked_popen import NUMBERS

_LARGEST = 1 << 20
_LEFT_OUT = (
    "tailerd.spark",
    "tailerd.cli.screens",
    "tailerd.__main__",
    "tailerd.maintenance.maintenance_worker",
)

_OF_SPARK_WORKERS = (
    "pandas",
    "pyarrow.dataset",
    "pyarrow.parquet",
    "pyspark.worker",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.streaming.datasource",
)

# Before its submodule `run` is imported, which then has the name.
run_command = tailerd.cli.run


class Server:
    """Forks for clients until it is ended or its starter is gone."""

    def __init__(self, path: str) -> None:
        self._starter = os.getppid()
        self._running: dict[int, socket.socket] = {}
        self._of_spark: dict[int, int] = {}
        self._wake, wakes = os.pipe()
        os.set_blocking(wakes, False)
        os.set_blocking(self._wake, False)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._listener = socket.socket(socket.AF_UNIX)
        # Who waits for the file connects at once: it appears when somebody listens.
        self._listener.bind(f"{path}.new")
        self._listener.listen(64)
        Path(f"{path}.new").rename(path)

    def serve(self) -> Callable[[], object] | None:
        """Return, in a forked process, the program it is to run; elsewhere None at the end."""
        while os.getppid() == self._starter:
            listener = self._listener.fileno()
            ready, _, _ = select.select([listener, self._wake, *self._of_spark], [], [], 1)
            if self._wake in ready:
                os.read(self._wake, 4096)
                self._report()
            for client in self._of_spark.keys() & set(ready):
                # It sends nothing more: it has ended.
                os.kill(self._of_spark.pop(client), signal.SIGTERM)
            if listener in ready and (program := self._fork()) is not None:
                return program
        return None

    def _report(self) -> None:
        while self._running:
            number, status = os.waitpid(-1, os.WNOHANG)
            if not number:
                return
            with self._running.pop(number) as client:
                self._of_spark.pop(client.fileno(), None)
                _send(client, status)

    def _fork(self) -> Callable[[], object] | None:
        client, _ = self._listener.accept()
        message, streams, _, _ = socket.recv_fds(client, _LARGEST, 3)
        while message and not message.endswith(b"\n"):
            message += client.recv(_LARGEST)
        if not message:
            client.close()
            return None
        request = json.loads(message)
        module, is_of_spark = request["module"], request.get("is_of_spark", False)
        if is_of_spark:
            _load_for_spark()
        number = os.fork()
        if not number:
            _become(request, streams)
            words = request["arguments"]
            return partial(_run_module, module, words) if module else partial(_run_command, words)
        self._running[number] = client
        if is_of_spark:
            self._of_spark[client.fileno()] = number
        _send(client, number)
        for stream in streams:
            os.close(stream)
        return None


def _send(client: socket.socket, number: int) -> None:
    try:
        client.sendall(NUMBERS.pack(number))
    except OSError:
        # Nobody waits for it any longer.
        return


def _become(request: dict[str, object], streams: list[int]) -> None:
    """Turn a forked process into what `python -m tailerd` is when it begins."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    if request["session"]:
        os.setsid()
    os.chdir(str(request["folder"]))
    os.umask(int(str(request["umask"])))
    os.environ.clear()
    os.environ.update(request["environment"])  # type: ignore[call-overload]
    time.tzset()
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = _written(1, "strict")
    sys.stderr = _written(2, "backslashreplace")


def _written(number: int, errors: str) -> io.TextIOWrapper:
    buffering = 1 if number == 2 or os.isatty(number) else -1
    return open(number, "w", buffering, encoding="utf-8", errors=errors, closefd=False)


def _status_of(program: Callable[[], object]) -> int:
    """Run a program; return its exit status, having said what Python says of it."""
    try:
        program()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:  # noqa: BLE001
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def _end(status: int) -> NoReturn:
    """End the process as Python does, but for taking every module apart.

    That would write to each object there is, and so copy all memory of the server.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            # 120 is what Python says of output that was not written.
            status = status or (120 if stream is sys.stdout else 0)
    os._exit(status & 0xFF)


def _run_command(words: list[str]) -> None:
    sys.argv = ["tailerd", *words]
    tailerd.cli.main()


def _run_module(name: str, words: list[str]) -> None:
    for place in reversed(os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        if place and place not in sys.path:
            sys.path.insert(0, place)
            # It may have parts that others install.
            plugged_in.cache_clear()
    sys.argv = [name, *words]
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _import_all(package: ModuleType, *, but: tuple[str, ...] = ()) -> None:
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not module.name.startswith(but):
            importlib.import_module(module.name)


def _load() -> None:
    _import_all(tailerd, but=_LEFT_OUT)
    # Reads what a client needs to know of S3, and forgets the client.
    session = botocore.session.Session()
    session.register_component("data_loader", connection.service_models())
    session.create_client(
        "s3", region_name="us-east-1", aws_access_key_id="none", aws_secret_access_key="none"
    )
    tailerd.cli.run = run_command
    # Reads a file of every distribution.
    plugged_in()
    # Else each process would look through all of it again, at its end at the latest.
    gc.freeze()


def _load_for_spark() -> None:
    """Load what Spark's workers need, unless it is loaded."""
    if "pyspark.worker" in sys.modules:
        return
    for name in _OF_SPARK_WORKERS:
        importlib.import_module(name)
    _import_all(importlib.import_module("tailerd.spark"))
    gc.freeze()


if __name__ == "__main__":
    _load()
    if (program := Server(sys.argv[1]).serve()) is not None:
        _end(_status_of(program))
