"""`tailerd validate` and `tailerd offsets` over real tables."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml

from tailerd.cli import run
from tests.contracts.test_sink import file_rows
from tests.integration.daemon.running import TAILERD, delivered_ids, file_table, write_config
from tests.tables.builder import TableBuilder
from tests.waiting import PATIENCE_SECONDS

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def table(tmp_path: Path) -> TableBuilder:
    builder = TableBuilder(tmp_path / "t")
    builder.create()
    for number in range(3):
        builder.append([{"id": number}])
    return builder


def tailerd(*arguments: str | Path) -> int:
    return run([str(argument) for argument in arguments])


def test_validate_says_what_would_happen_and_makes_nothing(
    table: TableBuilder, tmp_path: Path, capsys: Captured
) -> None:
    config = write_config(
        tmp_path,
        orders=file_table(tmp_path / "t", tmp_path / "out"),
        later=file_table(tmp_path / "t", tmp_path / "out2", **{"from": "1"}),
        demo={**file_table(tmp_path / "new", tmp_path / "out3"), "create": "demo"},
    )
    assert tailerd("validate", config) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "at version 3; begins with the snapshot of version 3; engine arrow" in lines[0]
    assert "begins at version 1 (from: 1)" in lines[1]
    assert "a demo table would be made" in lines[2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t", "tailerd.yaml"]


def test_validate_tells_a_saved_offset_from_a_fresh_start(
    table: TableBuilder, tmp_path: Path, capsys: Captured
) -> None:
    config = write_config(tmp_path, orders=file_table(tmp_path / "t", tmp_path / "out"))
    assert tailerd("run", "--config", config, "--once") == 0
    assert tailerd("validate", config, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["resumes_at_version"], report["head_version"]) == (4, 3)


def test_validate_names_everything_that_would_fail(
    table: TableBuilder, tmp_path: Path, capsys: Captured
) -> None:
    (tmp_path / "file").write_text("")
    config = write_config(
        tmp_path,
        good=file_table(tmp_path / "t", tmp_path / "out"),
        none=file_table(tmp_path / "nowhere", tmp_path / "out2"),
        sink=file_table(tmp_path / "t", tmp_path / "file" / "out"),
    )
    assert tailerd("validate", config) == 3
    shown = capsys.readouterr()
    assert [line.partition(":")[0] for line in shown.out.splitlines()] == ["good", "none", "sink"]
    assert "error[not_a_table]" in shown.err
    assert "error[sink]" in shown.err
    assert "is a file" in shown.err


def test_validate_of_a_bad_file_is_wrong_configuration(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "c.yaml").write_text("tables: {o: {pth: x}}")
    assert tailerd("validate", tmp_path / "c.yaml") == 2
    assert "error[config]" in capsys.readouterr().err


def test_offsets_shows_all_or_one(table: TableBuilder, tmp_path: Path, capsys: Captured) -> None:
    config = write_config(
        tmp_path,
        orders=file_table(tmp_path / "t", tmp_path / "out"),
        spark={**file_table(tmp_path / "t", tmp_path / "out2"), "engine": "spark"},
    )
    assert tailerd("run", "--config", write_only(config, "orders"), "--once") == 0
    assert tailerd("offsets", "--config", config) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:4] for line in lines] == [
        *(["table", "engine", "next"], ["orders", "arrow", "version", "4"]),
        ["spark", "spark", "nothing", "saved"],
    ]
    assert tailerd("offsets", "orders", "--config", config, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["table"], shown["offset"]["version"]) == ("orders", 4)


def write_only(config: Path, name: str) -> Path:
    """A copy of the configuration with one table and the same state."""
    content = yaml.safe_load(config.read_text())
    content["tables"] = {name: content["tables"][name]}
    only = config.with_name(f"only-{name}.yaml")
    only.write_text(yaml.safe_dump(content))
    return only


def stream_table(folder: Path) -> dict[str, object]:
    """A table with a sink of Spark's own."""
    sink = {"kind": "stream", "format": "json", "options": {"path": str(folder / "out")}}
    return {"path": str(folder / "t"), "engine": "spark", "sink": sink}


def checkpoint_of_a_query(folder: Path) -> None:
    """As Spark leaves it: of three micro-batches the last is planned and not done."""
    checkpoint = folder / "state/spark/orders"
    for name in ("offsets", "commits"):
        (checkpoint / name).mkdir(parents=True)
    offset = {"format": 1, "table_id": "t", "version": 7, "phase": "follow", "position": 2}
    for batch in (9, 10, 11):
        lines = ["v1", "{}", json.dumps({**offset, "version": batch})]
        (checkpoint / "offsets" / str(batch)).write_text("\n".join(lines))
    (checkpoint / "commits" / "9").write_text("v1\n{}")
    (checkpoint / "commits" / "10").write_text("v1\n{}")
    (checkpoint / "commits" / ".10.crc").write_text("")


def test_the_offset_in_the_checkpoint_of_sparks_own_sink_is_read(
    table: TableBuilder, tmp_path: Path, capsys: Captured
) -> None:
    config = write_config(tmp_path, orders=stream_table(tmp_path))
    checkpoint_of_a_query(tmp_path)
    assert tailerd("offsets", "--config", config) == 0
    assert "version 10, after its first 2 files" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("to", "version", "ids"),
    [("1", 1, [0, 1, 2]), ("snapshot", 3, [0, 1, 2]), ("latest", 4, []), ("3", 3, [2])],
)
def test_reset_moves_a_pipeline_and_its_files_follow_on_both_engines(
    table: TableBuilder,
    tmp_path: Path,
    capsys: Captured,
    engine: str,
    to: str,
    version: int,
    ids: list[int],
) -> None:
    options = {"from": "latest", "max_files_per_batch": 1, "engine": engine}
    config = write_config(tmp_path, orders=file_table(tmp_path / "t", tmp_path / "out", **options))
    assert tailerd("offsets", "reset", "orders", "--to", to, "--config", config) == 0
    assert tailerd("offsets", "orders", "--config", config, "--json") == 0
    shown = json.loads(capsys.readouterr().out.splitlines()[1])
    assert (shown["offset"]["version"], shown["engine"]) == (version, engine)
    for _ in range(2):
        assert tailerd("run", "--config", config, "--once") == 0
        assert sorted(delivered_ids(tmp_path / "out")) == ids
        assert tailerd("offsets", "reset", "orders", "--to", to, "--config", config) == 0


def test_the_question_before_versions_are_skipped_counts_what_is_left(
    table: TableBuilder, tmp_path: Path, capsys: Captured, engine: str
) -> None:
    options = {"from": "1", "max_files_per_batch": 1, "engine": engine}
    config = write_config(tmp_path, orders=file_table(tmp_path / "t", tmp_path / "out", **options))
    assert tailerd("run", "--config", config, "--once") == 0
    table.append([{"id": 3}, {"id": 4}])
    capsys.readouterr()
    reset = ("offsets", "reset", "orders", "--config", config)
    assert tailerd(*reset, "--to", "5") == 2
    assert "skips version 4 (2 rows) of orders" in capsys.readouterr().err
    assert tailerd(*reset, "--to", "4") == 0
    assert tailerd(*reset, "--to", "5", "--yes") == 0
    assert "begins at version 5. Skipped version 4 (2 rows)" in capsys.readouterr().out
    assert tailerd(*reset, "--to", "5") == 0
    assert tailerd("run", "--config", config, "--once") == 0
    assert "skipped version 4 (2 rows)" in capsys.readouterr().err
    assert sorted(delivered_ids(tmp_path / "out")) == [0, 1, 2]


@pytest.mark.parametrize(("answer", "status"), [("n", 1), ("y", 0)])
def test_in_a_terminal_the_reset_asks(
    table: TableBuilder, tmp_path: Path, answer: str, status: int
) -> None:
    config = write_config(tmp_path, orders=file_table(tmp_path / "t", tmp_path / "out"))
    assert tailerd("run", "--config", config, "--once") == 0
    table.append([{"id": 3}])
    terminal, inside = os.openpty()
    arguments = ["offsets", "reset", "orders", "--to", "latest", "--config", str(config)]
    process = subprocess.Popen(
        [*TAILERD, *arguments], stdin=inside, stderr=inside, stdout=subprocess.PIPE, text=True
    )
    os.write(terminal, f"{answer}\n".encode())
    out, _ = process.communicate(timeout=PATIENCE_SECONDS)
    shown = os.read(terminal, 10_000).decode()
    os.close(terminal)
    os.close(inside)
    assert process.returncode == status
    assert "skips version 4 (1 row) of orders" in shown
    assert ("Nothing was changed." in shown) is (status == 1)
    assert ("Skipped version 4" in out) is (status == 0)


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_reset_into_the_middle_of_a_file_delivers_the_rest_of_it_anew(
    table: TableBuilder, tmp_path: Path, kind: str
) -> None:
    out = tmp_path / "out"
    orders = file_table(tmp_path / "t", out, **{"from": "0"})
    orders["sink"] = {"kind": "file", "path": str(out), "format": kind}
    config = write_config(tmp_path, orders=orders)
    assert tailerd("run", "--config", config, "--once") == 0
    assert [row[0] for row in file_rows(out)] == [0, 1, 2]
    assert len(list(out.glob(f"*.{kind}"))) == 1
    assert tailerd("offsets", "reset", "orders", "--to", "2", "--config", config) == 0
    assert tailerd("run", "--config", config, "--once") == 0
    assert [row[0] for row in file_rows(out)] == [0, 1, 2]
    assert [path.name[:20] for path in sorted(out.glob(f"*.{kind}"))] == [f"{0:020}", f"{2:020}"]


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["reset", "ordrs", "--to", "latest"], 2, "Did you mean `orders`"),
        (["ordrs"], 2, "Did you mean `orders`"),
        (["reset", "orders", "--to", "someday"], 2, "--to is 'someday'"),
        (["reset", "orders", "--to", "99"], 3, "ahead of the table"),
    ],
)
def test_what_cannot_be_shown_or_reset_says_why(
    table: TableBuilder,
    tmp_path: Path,
    capsys: Captured,
    arguments: list[str],
    status: int,
    words: str,
) -> None:
    config = write_config(tmp_path, orders=file_table(tmp_path / "t", tmp_path / "out"))
    assert tailerd("offsets", *arguments, "--config", config) == status
    assert words in capsys.readouterr().err
    assert not (tmp_path / "state/offsets/orders.json").exists()


def test_the_offset_of_sparks_own_sink_is_not_reset_behind_sparks_back(
    table: TableBuilder, tmp_path: Path, capsys: Captured
) -> None:
    config = write_config(tmp_path, orders=stream_table(tmp_path))
    reset = ("offsets", "reset", "orders", "--to", "latest", "--config", config)
    # Without a checkpoint there is nothing behind which it could be done.
    assert tailerd(*reset) == 0
    checkpoint_of_a_query(tmp_path)
    capsys.readouterr()
    assert tailerd(*reset) == 2
    assert "state/spark/orders" in capsys.readouterr().err


def test_a_demo_table_is_made_once_and_delivered(tmp_path: Path, capsys: Captured) -> None:
    config = write_config(
        tmp_path, demo={**file_table(tmp_path / "demo", tmp_path / "out"), "create": "demo"}
    )
    assert tailerd("run", "--config", config, "--once") == 0
    commits = sorted((tmp_path / "demo/_delta_log").glob("*.json"))
    files = sorted((tmp_path / "out").glob("*.jsonl"))
    assert commits
    assert files
    assert tailerd("run", "--config", config, "--once") == 0
    assert sorted((tmp_path / "demo/_delta_log").glob("*.json")) == commits
    assert sorted((tmp_path / "out").glob("*.jsonl")) == files


@pytest.mark.parametrize("command", ["run", "validate", "offsets"])
def test_help_shows_examples(command: str, capsys: Captured) -> None:
    assert tailerd(command, "--help") == 0
    text = capsys.readouterr().out
    assert "Examples:" in text
    assert f"tailerd {command}" in text
