"""The compose file, the systemd unit, and the list of what comes from others."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tailerd import __version__
from tests.deploy.engine import ROOT
from tests.deploy.sbom import list_pins, write_sbom
from tests.waiting import PATIENCE_SECONDS

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "config/compose.yaml").read_text())
UNIT = ROOT / "config/tailerd.service"
MAX_EXPOSURE = 20
"""Of `systemd-analyze security`, in tenths; a unit without hardening has 96."""


def test_every_image_of_the_compose_file_is_named_and_every_mount_is_there() -> None:
    assert set(COMPOSE["services"]) == {"kafka", "tailerd", "prometheus", "grafana"}
    for name, service in COMPOSE["services"].items():
        assert re.fullmatch(r"[a-z/]+:v?\d+\.\d+\.\d+(-arrow)?", service["image"]), name
        assert set(service.get("depends_on", ())) <= set(COMPOSE["services"])
        for mount in service.get("volumes", ()):
            source = mount.partition(":")[0]
            is_file = source.startswith("./") and (ROOT / "config" / source).is_file()
            assert is_file or source in COMPOSE["volumes"], mount
        assert {each["source"] for each in service.get("configs", ())} <= set(COMPOSE["configs"])
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    assert COMPOSE["services"]["tailerd"]["image"] == f"tailerd:{__version__}-arrow"
    build = COMPOSE["services"]["tailerd"]["build"]
    assert (ROOT / "config" / build["context"]).resolve() == ROOT


def test_prometheus_and_grafana_find_the_daemon_and_the_dashboard() -> None:
    contents = {name: yaml.safe_load(each["content"]) for name, each in COMPOSE["configs"].items()}
    [scrape] = contents["prometheus"]["scrape_configs"]
    [target] = scrape["static_configs"][0]["targets"]
    host, _, port = target.partition(":")
    http = contents["tailerd"]["http"]
    assert (host in http["hosts"], http["listen"].rpartition(":")[2]) == (True, port)
    grafana = COMPOSE["services"]["grafana"]
    [folder] = [each["options"]["path"] for each in contents["dashboards"]["providers"]]
    assert any(mount.split(":")[1].startswith(f"{folder}/") for mount in grafana["volumes"])
    assert contents["prometheus"]["rule_files"] == ["/etc/prometheus/alerts.yaml"]
    assert any(
        "/etc/prometheus/alerts.yaml" in m for m in COMPOSE["services"]["prometheus"]["volumes"]
    )


def analyze(*arguments: str | Path) -> str:
    """Run systemd-analyze; without it the test is skipped, in CI it fails."""
    if shutil.which("systemd-analyze") is None:
        text = "systemd-analyze is not installed: apt-get install systemd"
        if os.environ.get("CI"):
            pytest.fail(text)
        pytest.skip(text)
    command = ["systemd-analyze", *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_systemd_takes_the_unit_without_a_warning(tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("tailerd")
    text = UNIT.read_text().replace("/opt/tailerd/bin/tailerd", str(program))
    assert str(program) in text
    unit = tmp_path / UNIT.name
    unit.write_text(text)
    assert UNIT.name not in analyze("verify", "--man=no", unit)
    wrong = tmp_path / "wrong.service"
    wrong.write_text(text.replace("ProtectSystem=strict", "ProtectSystem=sternly"))
    assert "sternly" in analyze("verify", "--man=no", wrong)


def test_the_unit_leaves_an_attacker_little(tmp_path: Path) -> None:
    analyze("security", "--offline=yes", f"--threshold={MAX_EXPOSURE}", UNIT)


@pytest.mark.full
@pytest.mark.slow
def test_every_package_of_the_image_is_listed_with_its_licence(tmp_path: Path) -> None:
    write_sbom(tmp_path)
    found = json.loads((tmp_path / "sbom.json").read_text())
    assert found["bomFormat"] == "CycloneDX"
    listed = {
        each["name"].lower().replace("_", "-").replace(".", "-"): each["version"]
        for each in found["components"]
    }
    assert listed == list_pins()
    rows = (tmp_path / "licences.md").read_text().splitlines()[4:]
    assert len(rows) == len(listed)
    assert [row for row in rows if row.endswith("|  |")] == []
