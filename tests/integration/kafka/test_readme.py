"""README's lines for Kafka, as they are but for the port."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.waiting import PATIENCE_SECONDS

pytestmark = [pytest.mark.kafka, pytest.mark.full]


def kafka_lines() -> list[str]:
    """The commands of README's block that starts a broker, without their comments."""
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    [block] = [each for each in blocks if "tests.kafka" in each]
    return [re.sub(r"\s+#.*", "", line).strip() for line in block.splitlines()]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextmanager
def started_broker(line: str, port: int) -> Iterator[None]:
    command = line.replace("9092", str(port)).removesuffix("&").split()
    assert command[0] == "python"
    process = subprocess.Popen(
        [sys.executable, *command[1:]], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("PLAINTEXT")
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def test_a_second_broker_on_a_port_says_that_the_first_still_runs() -> None:
    """Clients would get the topics and offsets of the first."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        done = subprocess.run(
            [sys.executable, "-m", "tests.kafka", "--port", port],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
    assert done.returncode == 1
    assert f"port {port} cannot be opened" in done.stderr
    assert "kill %%" in done.stderr


def test_the_three_lines_deliver_a_table_and_prove_it(kafka_jars: Path, tmp_path: Path) -> None:
    install, first, *others = kafka_lines()
    assert install == "python -m pip install -q '.[test]'", "the broker needs its libraries"
    assert len(others) == 2
    port = free_port()
    servers = json.dumps([f"127.0.0.1:{port}"])
    environment = {**os.environ, "TAILERD__TABLES__ORDERS__SINK__BOOTSTRAP_SERVERS": servers}
    output = ""
    with started_broker(first, port):
        for line in others:
            command = line.replace("tailerd ", f"{sys.executable} -m tailerd ", 1)
            command = command.replace("config/kafka.yaml", str(ROOT / "config/kafka.yaml"))
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=PATIENCE_SECONDS,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            output = done.stdout
    assert output.startswith("equal: ")
