"""`tailerd doctor` and `validate`: each thing that would fail, found before `run`."""

from __future__ import annotations

import json
import os
import socket
import stat
import sys
from pathlib import Path

import pytest
import yaml

from tailerd.checks.daemon_folders import daemon_findings
from tailerd.checks.finding import Outcome
from tailerd.checks.machine import inotify_findings, worker_python_finding
from tailerd.config import load_config
from tailerd.errors import StorageError
from tailerd.state.locked_files import lock_state
from tests.cli.commands import Commands, Ran

# Nobody listens there, and waiting for them changes nothing.
IMPATIENT = {"bootstrap_timeout_ms": 500}


def configuration(tmp_path: Path, lake: Path, **fields: object) -> Path:
    """Write a configuration with one table; `sink` replaces the sink."""
    sink = fields.pop("sink", {"kind": "file", "path": str(tmp_path / "out")})
    content = {
        "engine": "arrow",
        "state": str(tmp_path / "state"),
        "http": {"listen": "127.0.0.1:0"},
        "tables": {"orders": {"path": str(lake / "orders"), "from": "snapshot", "sink": sink}},
        **fields,
    }
    path = tmp_path / "tailerd.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def problems(ran: Ran) -> dict[str, dict[str, object]]:
    return {str(row["check"]): row for row in ran.rows if row["outcome"] == "problem"}


def test_a_configuration_that_runs_has_no_problem_and_nothing_is_made(
    lake: Path, tmp_path: Path, command: Commands
) -> None:
    before = sorted(tmp_path.rglob("*"))
    config = configuration(tmp_path, lake)
    ran = command("doctor", config, "--json")
    assert (ran.status, problems(ran)) == (0, {})
    assert {"python", "state", "port", "table orders"} <= {row["check"] for row in ran.rows}
    assert sorted(tmp_path.rglob("*")) == sorted([*before, config])


def test_without_a_file_the_machine_is_checked(command: Commands) -> None:
    ran = command("doctor", "--json")
    assert ran.status == 0
    assert {"python", "disk"} <= {row["check"] for row in ran.rows}


def test_a_key_that_is_no_column_is_found(lake: Path, tmp_path: Path, command: Commands) -> None:
    sink = {
        "kind": "kafka",
        "bootstrap_servers": ["127.0.0.1:1"],
        "topic": "t",
        "key": ["nme"],
        "delivery": "at-least-once",
        "producer": IMPATIENT,
    }
    config = configuration(tmp_path, lake, sink=sink)
    ran = command("validate", config)
    assert ran.status == 2
    assert "tables.orders.sink.key names the column nme" in ran.errors
    assert "Did you mean `name`?" in ran.errors
    # The broker that is down is found as well.
    assert "127.0.0.1:1 cannot be reached" in ran.errors


def test_a_broker_that_is_down_is_found_where_the_table_is_still_to_be_made(
    lake: Path, tmp_path: Path, command: Commands
) -> None:
    sink = {
        "kind": "kafka",
        "bootstrap_servers": ["127.0.0.1:1"],
        "topic": "t",
        "producer": IMPATIENT,
    }
    table = {"path": str(tmp_path / "new"), "create": "demo", "sink": sink}
    config = configuration(tmp_path, lake, tables={"demo": table})
    assert command("validate", config).status == 1
    assert "table demo" in problems(command("doctor", config, "--json"))


@pytest.mark.parametrize("name", ["validate", "doctor"])
def test_a_port_in_use_is_found(lake: Path, tmp_path: Path, command: Commands, name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        config = configuration(tmp_path, lake, http={"listen": address})
        ran = command(name, config)
    assert ran.status == 2
    assert f"{address} is in use" in " ".join((ran.output + ran.errors).split())


@pytest.mark.parametrize("name", ["validate", "doctor"])
def test_a_running_daemons_port_and_state_are_no_problem(
    lake: Path, tmp_path: Path, command: Commands, name: str
) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        lock_state(tmp_path / "state"),
    ):
        listen = f"127.0.0.1:{server.getsockname()[1]}"
        config = configuration(tmp_path, lake, http={"listen": listen})
        assert command(name, config).status == 0


@pytest.mark.parametrize("field", ["state", "sink"])
def test_a_folder_that_cannot_be_made_is_found(
    lake: Path, tmp_path: Path, command: Commands, field: str
) -> None:
    (tmp_path / "file").write_text("")
    location = str(tmp_path / "file/below")
    fields: dict[str, object] = {"state": location}
    if field == "sink":
        fields = {"sink": {"kind": "file", "path": location}}
    config = configuration(tmp_path, lake, **fields)
    assert command("validate", config).status != 0
    found = problems(command("doctor", config, "--json"))
    problem = found["state" if field == "state" else "table orders"]
    assert problem["remedy"]
    assert "file" in str(problem["message"])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_state_folder_without_rights_is_found(tmp_path: Path, lake: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=stat.S_IRUSR | stat.S_IXUSR)
    config = load_config(configuration(tmp_path, lake, state=str(closed / "state")))
    [state, _] = daemon_findings(config)
    assert state.outcome is Outcome.PROBLEM


def test_a_wrong_configuration_is_a_finding_and_the_machine_is_checked_all_the_same(
    tmp_path: Path, command: Commands
) -> None:
    (tmp_path / "t.yaml").write_text("tables: {o: {pth: x}}")
    ran = command("doctor", tmp_path / "t.yaml", "--json")
    assert ran.status == 2
    assert list(problems(ran)) == ["configuration"]
    assert "python" in {row["check"] for row in ran.rows}


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        ("tailerd.checks.machine.disk_finding", "disk"),
        ("tailerd.checks.machine.inotify_findings", "inotify"),
        ("tailerd.checks.machine._spark_findings", "spark"),
        ("tailerd.checks.daemon_folders.state_finding", "state"),
        ("tailerd.checks.daemon_folders.port_finding", "port"),
        ("tailerd.checks.tables.open_source", "table orders"),
        ("tailerd.checks.tables.lacks_demo_table", "table orders"),
        ("tailerd.checks.tables.open_sink", "table orders"),
    ],
)
@pytest.mark.parametrize("error", [ValueError("oh"), PermissionError(13, "no"), KeyError("x")])
def test_a_check_that_breaks_is_a_finding_and_the_others_are_made(
    lake: Path,
    tmp_path: Path,
    command: Commands,
    monkeypatch: pytest.MonkeyPatch,
    broken: str,
    check: str,
    error: Exception,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(broken, fail)
    config = configuration(tmp_path, lake, engine="spark" if check == "spark" else "arrow")
    ran = command("doctor", config, "--json")
    assert ran.status == 1
    assert check in problems(ran)
    checks = {str(row["check"]) for row in ran.rows}
    assert {"python", "disk", "inotify", "state", "port", "table orders"} <= checks


def test_a_search_that_fails_leaves_the_tables_of_the_file_to_be_checked(
    lake: Path, tmp_path: Path, command: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise StorageError("The bucket is away.")

    monkeypatch.setattr("tailerd.cli.configured.discover_tables", fail)
    ran = command("doctor", configuration(tmp_path, lake), "--json")
    assert (ran.status, list(problems(ran))) == (1, ["discover"])
    assert "table orders" in {row["check"] for row in ran.rows}


def test_each_problem_for_people_has_its_remedy_within_the_width(
    lake: Path, tmp_path: Path, command: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    config = configuration(tmp_path, lake, tables={})
    ran = command("doctor", config)
    assert ran.status == 2
    assert "Remedy: " in ran.output
    assert max(map(len, ran.output.splitlines())) <= 80


def fake_python(tmp_path: Path, output: str, status: int = 0) -> str:
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\necho '{output}'\nexit {status}\n")
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"version": [3, 9], "missing": ""}, "is Python 3.9"),
        ({"version": list(sys.version_info[:2]), "missing": "pyarrow"}, "lacks the module pyarrow"),
        ("no JSON", "does not start"),
    ],
)
def test_another_python_for_sparks_workers_is_found_before_spark_starts(
    tmp_path: Path, answer: object, words: str
) -> None:
    python = fake_python(tmp_path, json.dumps(answer) if isinstance(answer, dict) else str(answer))
    found = worker_python_finding({}, {"PYSPARK_PYTHON": python})
    assert found.outcome is Outcome.PROBLEM
    assert words in found.message
    assert sys.executable in found.remedy


def test_the_same_python_by_another_name_is_no_problem(tmp_path: Path) -> None:
    answer = {"version": list(sys.version_info[:2]), "missing": ""}
    python = fake_python(tmp_path, json.dumps(answer))
    assert worker_python_finding({"spark.pyspark.python": python}, {}).outcome is Outcome.OK


def test_too_few_watches_are_a_warning(tmp_path: Path, lake: Path) -> None:
    config = load_config(configuration(tmp_path, lake))
    (tmp_path / "max_user_watches").write_text("1")
    (tmp_path / "max_user_instances").write_text("128")
    [found] = inotify_findings(config, tmp_path)
    assert found.outcome is Outcome.WARNING
    assert "max_user_watches=4" in found.remedy
    [found] = inotify_findings(config, tmp_path / "nowhere")
    assert found.outcome is Outcome.SKIPPED
