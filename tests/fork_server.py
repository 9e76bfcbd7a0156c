"""Runs `tailerd` a thousand times without starting Python a thousand times.

A process that has loaded everything forks for each command; `fork_client.py`, which loads nothing,
passes it arguments and its own standard output and error, and ends with the command's status.

    python -m tests.fork_server SOCKET LOCAL-FOLDER s3://BUCKET/PREFIX
    python -S -E tests/fork_client.py SOCKET COMMAND [ARGUMENTS]

Where an argument names something below the local folder, the same place in the bucket is meant.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import socket
import sys
import threading
import traceback

import botocore.session

import tailerd.cli
import tailerd.storage.s3.store
from tailerd.storage.s3 import connection

_LARGEST = 1 << 20

# Before its submodule `run` is imported, which then has the name.
run_command = tailerd.cli.run


def serve(path: str, local: str, remote: str) -> None:
    """Listen until killed."""
    for module in pkgutil.iter_modules(tailerd.cli.__path__, "tailerd.cli."):
        importlib.import_module(module.name)
    # Reads what a client needs to know of S3, and forgets the client.
    session = botocore.session.Session()
    session.register_component("data_loader", connection.service_models())
    session.create_client("s3", region_name="us-east-1")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(64)
        while True:
            client, _ = listener.accept()
            message, descriptors, _, _ = socket.recv_fds(client, _LARGEST, 2)
            if not message:
                client.close()
                continue
            words = [word.replace(local, remote) for word in json.loads(message)]
            child = os.fork()
            if child == 0:
                listener.close()
                os.dup2(descriptors[0], 1)
                os.dup2(descriptors[1], 2)
                _run(words)
            for descriptor in descriptors:
                os.close(descriptor)
            threading.Thread(target=_answer, args=(client, child), daemon=True).start()


def _run(words: list[str]) -> None:
    status = 1
    try:
        status = run_command(words)
    except BaseException:  # noqa: BLE001 - nobody above would tell
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _answer(client: socket.socket, child: int) -> None:
    _, status = os.waitpid(child, 0)
    with client:
        client.sendall(str(os.waitstatus_to_exitcode(status)).encode())


if __name__ == "__main__":
    serve(*sys.argv[1:4])
