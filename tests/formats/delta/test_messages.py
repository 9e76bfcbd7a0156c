"""Messages: remedies that help, no secret in any, and no `bug` where the input is bad."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tailerd.cli import run
from tests.reading.test_memory_bounds import with_vector
from tests.tables.builder import TableBuilder
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.attack


SECRET = "hunter2-Zq9"


def command(
    *arguments: str | Path,
    environment: Mapping[str, str] | None = None,
    shell: str = "",
) -> subprocess.CompletedProcess[str]:
    """Run `tailerd`; `shell` says what a shell does with its output."""
    words = [sys.executable, "-m", "tailerd", *map(str, arguments)]
    if shell:
        words = ["bash", "-c", f'set -o pipefail; "$@" {shell}', "bash", *words]
    return subprocess.run(
        words,
        capture_output=True,
        text=True,
        errors="surrogateescape",
        check=False,
        timeout=PATIENCE_SECONDS,
        env={**os.environ, **(environment or {})},
    )


@pytest.fixture
def table(tmp_path: Path) -> TableBuilder:
    table = TableBuilder(tmp_path / "t")
    table.append([{"id": 1, "name": "a"}])
    table.append([{"id": 2, "name": "b"}])
    return table


def configured(folder: Path, table: TableBuilder, more: str = "") -> Path:
    path = folder / "tailerd.yaml"
    path.write_text(
        f"""
engine: arrow
state: {folder}/state
http:
  listen: 127.0.0.1:0
tables:
  orders:
    path: {table.folder}
    from: snapshot
    sink:
      kind: file
      path: {folder}/out
{more}"""
    )
    return path


# ---------------------------------------------------------------------- remedies


@pytest.mark.parametrize("damage", [b"PAR1 no more", None], ids=["torn", "other"])
def test_a_damaged_checkpoint_that_is_all_there_is_must_be_restored_and_never_removed(
    table: TableBuilder, tmp_path: Path, damage: bytes | None
) -> None:
    [checkpoint] = table.checkpoint()
    other = TableBuilder(tmp_path / "other")
    [add] = other.append([{"id": 1, "name": "a"}]).adds
    data = (other.folder / add["add"]["path"]).read_bytes()
    checkpoint.write_bytes(data if damage is None else damage)
    for version in (0, 1):
        table.commit_path(version).unlink()
    done = command("tail", table.folder, "--from", "snapshot", "--once")
    assert done.returncode == 3
    assert "error[corrupt_log]" in done.stderr
    assert "Remove it" not in done.stderr
    assert "Remove the" not in done.stderr
    assert "estore it from a" in done.stderr
    if damage is not None:
        assert "Do not remove it" in done.stderr


def test_no_remedy_of_the_package_says_to_remove_a_checkpoint() -> None:
    package = Path(__file__).resolve().parents[3] / "tailerd"
    found = [
        str(path)
        for path in (package / "formats/delta").rglob("*.py")
        if "Remove it; the table can be read" in path.read_text()
        or "Remove the checkpoint" in path.read_text()
    ]
    assert found == []


@pytest.mark.parametrize("changes", [{"offset": -5}, {"sizeInBytes": -5}], ids=str)
def test_a_vector_at_a_negative_offset_blames_the_log_and_not_the_data_file(
    tmp_path: Path, changes: dict[str, int]
) -> None:
    table = with_vector(tmp_path / "t", **changes)
    done = command("tail", table.folder, "--from", "snapshot", "--once")
    assert done.returncode == 3
    assert "error[invalid_deletion_vector]" in done.stderr
    assert "-5" in done.stderr
    assert "log entry is damaged" in done.stderr
    assert ".parquet" not in done.stderr


@pytest.mark.parametrize("arguments", [["inspect", "--files"], ["tail", "--from", "snapshot"]])
def test_a_file_twice_in_one_commit_is_not_mended_by_running_again(
    table: TableBuilder, arguments: list[str]
) -> None:
    add = table.data_file([{"id": 3, "name": "c"}])
    table.commit(add, add)
    name, *rest = arguments
    once = ["--once"] if name == "tail" else []
    done = command(name, table.folder, *rest, *once)
    assert done.returncode == 3
    assert "error[corrupt_log]" in done.stderr
    assert f"{2:020}.json adds one file more than once" in done.stderr
    assert "again" not in done.stderr.lower()


def test_maintenance_says_of_a_file_twice_in_one_commit_that_its_writer_is_broken(
    table: TableBuilder,
) -> None:
    table.change_metadata(properties={"delta.checkpointInterval": "1"})
    add = table.data_file([{"id": 3, "name": "c"}])
    table.commit(add, add)
    done = command("maintain", table.folder, "--apply")
    assert "adds one file more than once" in done.stderr + done.stdout
    assert "un the command again" not in done.stderr + done.stdout


@pytest.mark.full
def test_a_name_that_no_file_can_have_is_not_tried_again(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t")
    [add] = table.append([{"id": 1, "name": "a"}]).adds
    long = {**add["add"], "path": "x" * 5000}
    table.commit(table.remove(add), {"add": long})
    config = configured(tmp_path, table)
    done = command("run", "--config", config, "--once")
    assert "name_too_long" in done.stderr
    assert done.stderr.count("name_too_long") < 3
    assert "does not exist" not in done.stderr


# ---------------------------------------------------------------------- secrets


MISTAKES = {
    "alias": f"sasl_plain_password: *{SECRET}",
    "anchor-twice": f"sasl_plain_password: &{SECRET} x\n        b: &{SECRET} y",
    "tag": f"sasl_plain_password: !{SECRET}",
    "handle": f"sasl_plain_password: !e!{SECRET} x",
    "percent": f"sasl_plain_password: %{SECRET}",
    "at": f"sasl_plain_password: @{SECRET}",
    "backquote": f"sasl_plain_password: `{SECRET}",
    "colon": f"sasl_plain_password: a{SECRET}: b: c",
    "escape": f'sasl_plain_password: "\\q{SECRET}"',
    "open-quote": f'sasl_plain_password: "{SECRET}',
    "flow": f"sasl_plain_password: {{{SECRET}",
    "list": f"sasl_plain_password: [{SECRET}]",
    "mapping": f"sasl_plain_password: {{a: {SECRET}}}",
    "number": f"sasl_plain_password: 2024-99-99\n        sasl_plain_username: [{SECRET}]",
    "text": f"{SECRET}",
    "control": f"sasl_plain_password: {SECRET}\x01",
    "unknown": f"sasl_plain_pasword: {SECRET}",
    "nested": f"client_id: {{sasl_plain_password: {SECRET}}}",
}


def kafka_config(folder: Path, producer: str) -> Path:
    path = folder / "tailerd.yaml"
    path.write_text(
        f"""
engine: arrow
state: {folder}/state
tables:
  orders:
    path: {folder}/t
    sink:
      kind: kafka
      bootstrap_servers: [127.0.0.1:1]
      topic: orders
      producer:
        {producer}
"""
    )
    return path


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_beside_a_password_does_not_print_it(
    tmp_path: Path, mistake: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = kafka_config(tmp_path, MISTAKES[mistake])
    # With the traceback, which has all that the message has and more.
    assert run(["--debug", "run", "--config", str(path), "--once"]) == 2
    reported = capsys.readouterr()
    assert "error[config]" in reported.err
    assert SECRET not in reported.err + reported.out


def test_a_mistake_in_yaml_is_told_with_file_line_column_and_field(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = kafka_config(tmp_path, MISTAKES["alias"])
    assert run(["validate", str(path)]) == 2
    reported = capsys.readouterr().err
    assert (
        f"{path}:12:30 (tables.orders.sink.producer.sasl_plain_password) is not valid YAML: a value"
        " begins with a character that YAML reserves. Write values in quotes"
    ) in reported


@pytest.mark.parametrize(
    "value",
    [f'{{"sasl_plain_password": "{SECRET}"', f"sasl_plain_password={SECRET}", f'["{SECRET}"]'],
)
def test_a_mistake_in_the_environment_does_not_print_a_password(
    tmp_path: Path,
    value: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = kafka_config(tmp_path, "client_id: x")
    monkeypatch.setenv("TAILERD__TABLES__ORDERS__SINK__PRODUCER", value)
    assert run(["--debug", "validate", str(path)]) == 2
    reported = capsys.readouterr()
    assert SECRET not in reported.err + reported.out


# ---------------------------------------------------------------------- no bug of ours


ENDINGS = {"closed": ">&-", "nobody-reads": "| head -0", "closed-error": "2>&-"}


@pytest.mark.full
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(
    "arguments",
    [
        ["inspect", "TABLE"],
        ["tail", "TABLE", "--from", "0", "--once"],
        ["--help"],
        ["offsets", "--config", "CONFIG"],
    ],
    ids=lambda words: words[0],
)
def test_a_command_whose_output_nobody_takes_ends_quietly(
    table: TableBuilder, tmp_path: Path, arguments: list[str], ending: str
) -> None:
    locations = {"TABLE": str(table.folder), "CONFIG": str(configured(tmp_path, table))}
    done = command(*(locations.get(word, word) for word in arguments), shell=ENDINGS[ending])
    assert done.returncode == 0
    assert "error[" not in done.stderr
    assert "Exception" not in done.stderr
    assert "Traceback" not in done.stderr


def test_output_that_the_disk_has_no_room_for_is_an_error_of_the_system(
    table: TableBuilder,
) -> None:
    done = command("inspect", table.folder, shell="> /dev/full")
    assert done.returncode == 1
    assert "error[storage]: The system refused: No space left on device" in done.stderr


@pytest.mark.full
@pytest.mark.parametrize(
    "body",
    [
        "[" * 5_000_000,
        '{"a":' * 1_000_000,
        '{"format": 1, "offset": {"format": 1, "table_id": "t", "version": 1e999,'
        ' "phase": "follow", "position": 0}}',
        "\xff",
    ],
    ids=["lists", "objects", "infinite", "no-text"],
)
def test_a_state_of_nested_brackets_is_a_damaged_offset(
    table: TableBuilder, tmp_path: Path, body: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = configured(tmp_path, table)
    folder = tmp_path / "state" / "offsets"
    folder.mkdir(parents=True)
    (folder / "orders.json").write_bytes(body.encode("latin-1"))
    run(["offsets", "--config", str(config)])
    done = command("run", "--config", config, "--once")
    for reported in (capsys.readouterr().err, done.stderr):
        assert "bug" not in reported
        assert "is damaged" in reported or "cannot be read" in reported
        assert "offsets reset orders" in reported


POSIX = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.full
def test_a_path_beyond_ascii_works_in_the_posix_locale(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "tabellä")
    table.append([{"id": 1, "name": "ä"}])
    table.checkpoint()
    row = command(
        "tail", table.folder, "--from", "snapshot", "--once", "--format", "jsonl", environment=POSIX
    )
    assert row.stderr == ""
    assert json.loads(row.stdout)["name"] == "ä"
    assert command("inspect", table.folder, environment=POSIX).returncode == 0
    missing = command("inspect", tmp_path / "fehlt-ä", environment=POSIX)
    assert missing.returncode == 3
    assert "error[not_a_table]" in missing.stderr


@pytest.mark.full
def test_a_path_of_the_configuration_that_the_locale_cannot_name_is_told_with_the_way_out(
    tmp_path: Path,
) -> None:
    table = TableBuilder(tmp_path / "表")
    table.append([{"id": 1, "name": "a"}])
    done = command("run", "--config", configured(tmp_path, table), "--once", environment=POSIX)
    assert done.returncode == 2
    assert "tables.orders.path" in done.stderr
    assert "PYTHONUTF8=1" in done.stderr
    assert "Traceback" not in done.stderr
