"""The examples of Azure and Google run as their pages say."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.integration.daemon.running import daemon, read_log
from tests.kafka.ports import free_port
from tests.waiting import eventually

pytestmark = pytest.mark.full


@pytest.mark.parametrize(
    ("cloud", "printed", "server"),
    [("azure", 10000, "azurite"), ("google", 4443, "fake_gcs")],
)
def test_an_example_runs_as_printed_on_another_port(
    cloud: str, printed: int, server: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    # Where the server's program is missing, this skips or fails as everywhere.
    request.getfixturevalue(server)
    port = free_port()
    config = tmp_path / f"{cloud}.yaml"
    text = (ROOT / "config" / config.name).read_text()
    assert f":{printed}" in text
    text = text.replace(f":{printed}", f":{port}")
    config.write_text(text.replace("quickstart/", f"{tmp_path}/quickstart/"))
    words = [sys.executable, "-m", "tests.clouds", cloud, "--port", str(port), "--every", "0.5"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, cwd=tmp_path, env=env) as run:
        try:
            # At once, as on the page: the daemon waits for the emulator.
            with daemon(config) as process:
                eventually(lambda: read_log(config).count("Batch delivered") >= 4)
                process.send_signal(signal.SIGTERM)
                assert process.wait(20) == 0
        finally:
            run.terminate()
