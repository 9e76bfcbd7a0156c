"""Results of benchmarks are kept, and drawn as they were."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.benchmarks.measuring import Row
from tests.benchmarks.results import HISTORY, Run, figure, keep, kept, machine_kind, this_run
from tests.benchmarks.trend import bars, by_work, find_worse, lines, main


def row(work: str, ours: str, ratio: float | None = None) -> Row:
    return Row(work=work, ours=ours, peer="", ratio=ratio, goal="<= 1x", is_met=True)


def make_run(commit: str, *rows: Row) -> Run:
    return Run(commit=commit, date="2026-01-31", python="3.11.2", rows=rows)


def format_text(runs: list[Run], *words: str) -> str:
    return "\n".join(lines(runs, words, "x86_64"))


def test_what_is_kept_is_read_back_oldest_first(tmp_path: Path) -> None:
    file = tmp_path / "new" / "kind.jsonl"
    runs = [make_run("a", row("open", "3.5 ms", 0.5)), make_run("b", row("open", "1,234.5 ms"))]
    for each in runs:
        keep(each, file)
    assert kept(file) == runs
    assert [json.loads(line)["commit"] for line in file.read_text().splitlines()] == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "number", "unit"),
    [
        ("3.53 M/s", 3.53, "M/s"),
        ("2.86 M/s, 0.35 us/row", 2.86, "M/s"),
        ("1,662 k rows/s", 1662.0, "k rows/s"),
        ("0 B", 0.0, "B"),
    ],
)
def test_a_figure_is_a_number_and_its_unit(text: str, number: float, unit: str) -> None:
    assert figure(text) == (number, unit)


def test_what_begins_with_no_number_is_no_figure_and_not_drawn() -> None:
    with pytest.raises(ValueError, match="no number"):
        figure("none")
    assert by_work([make_run("a", row("open", "none"))]) == {}


def test_a_row_below_another_is_named_with_it() -> None:
    run = make_run("a", row("open", "1 ms"), row("  memory", "5 MiB"), row("read", "2 ms"))
    assert list(by_work([run])) == ["open", "open: memory", "read"]


def test_bars_start_at_zero() -> None:
    assert bars([100, 50, 0]) == "█▅▁"
    assert bars([100, 99]) == "██"
    assert bars([0, 0]) == "▁▁"


def test_the_trend_tells_first_newest_and_what_one_is_of_the_other() -> None:
    runs = [
        make_run("aaaa", row("open", "200 ms", 0.2)),
        make_run("bbbb", row("open", "100 ms", 0.1)),
    ]
    text = format_text(runs)
    for expected in ("2 runs", "aaaa", "bbbb", "█▅", "200 to 100 ms", "0.50x", "0.1x", "<= 1x"):
        assert expected in text, expected


def test_a_figure_whose_unit_changed_is_left_out() -> None:
    runs = [make_run("a", row("open", "2 s")), make_run("b", row("open", "100 ms"))]
    assert "open" not in format_text(runs)


def test_words_choose_what_is_drawn() -> None:
    text = format_text(
        [make_run("a", row("rows to Kafka", "1 M/s"), row("cold open", "2 ms"))], "kafka"
    )
    assert "rows to Kafka" in text
    assert "cold open" not in text


def test_a_kind_of_machine_without_results_is_told_with_those_that_have(tmp_path: Path) -> None:
    keep(make_run("a", row("open", "1 ms")), tmp_path / "arm64-8-cores-16-gib.jsonl")
    ran = CliRunner().invoke(main, ["--history", str(tmp_path), "--machine", "other"])
    assert ran.exit_code == 1
    assert "arm64-8-cores-16-gib" in ran.output
    drawn_too = CliRunner().invoke(
        main, ["--history", str(tmp_path), "--machine", "arm64-8-cores-16-gib"]
    )
    assert (drawn_too.exit_code, "open" in drawn_too.output) == (0, True)


def runs_of(*figures: str) -> list[Run]:
    return [make_run(f"c{number}", row("work", ours)) for number, ours in enumerate(figures)]


@pytest.mark.parametrize(
    ("figures", "worse"),
    [
        (["100 ms", "100 ms", "100 ms", "109 ms", "109 ms", "109 ms"], []),
        (
            ["100 ms", "100 ms", "100 ms", "115 ms", "115 ms", "115 ms"],
            ["work: 115 ms, at best 100 ms"],
        ),
        (["115 ms", "115 ms", "115 ms", "100 ms", "100 ms", "100 ms"], []),
        # One slow run is noise, and one fast run is luck.
        (["100 ms", "100 ms", "100 ms", "100 ms", "900 ms"], []),
        (["100 ms", "20 ms", "100 ms", "100 ms", "100 ms"], []),
        (["3 M/s", "3 M/s", "3 M/s", "1 M/s", "1 M/s"], ["work: 1 M/s, at best 3 M/s"]),
        (["1 M/s", "1 M/s", "1 M/s", "3 M/s", "3 M/s"], []),
        (["5 MiB"], []),
    ],
)
def test_a_figure_is_worse_if_the_median_of_three_runs_is(
    figures: list[str], worse: list[str]
) -> None:
    assert list(find_worse(runs_of(*figures))) == worse


def test_figures_that_became_worse_since_a_commit_fail_the_command(tmp_path: Path) -> None:
    file = tmp_path / "kind.jsonl"
    for ours in ("100 ms", "100 ms", "100 ms", "200 ms", "200 ms"):
        keep(make_run("HEAD", row("work", ours)), file)
    words = ["--history", str(tmp_path), "--machine", "kind", "--since"]
    ran = CliRunner().invoke(main, [*words, "HEAD"])
    assert (ran.exit_code, ran.output) == (1, "work: 200 ms, at best 100 ms\n")
    ran = CliRunner().invoke(main, [*words, "no-such-commit"])
    assert ran.exit_code == 1
    assert "no-such-commit" in ran.output


def test_this_run_names_the_commit_and_the_machine_only_by_its_kind() -> None:
    run = this_run([row("open", "1 ms")])
    assert run.commit
    assert re.fullmatch(r"[a-z0-9_]+(-\d+-\d+)?-\d+-cores-\d+-gib", machine_kind())


def test_every_result_in_the_repository_can_be_drawn() -> None:
    files = sorted(HISTORY.glob("*.jsonl"))
    assert files
    for file in files:
        assert by_work(kept(file)), file
