"""Draw what became of each benchmark's figure: `python -m tests.benchmarks.trend [WORDS]`.

For each figure of one kind of machine a bar for each run, the first and the newest figure, and what
one is of the other. Only figures with one of WORDS in their name, if any is given.

With `--since COMMIT` it names the figures that became worse: the median of the last three runs is
more than a tenth worse than the best median of three runs since then.
"""

from __future__ import annotations

import statistics
import subprocess
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import click

from tests.benchmarks.measuring import ROOT
from tests.benchmarks.results import HISTORY, Run, figure, kept, machine_kind

BARS = "▁▂▃▄▅▆▇█"
MAX_RUNS = 30
"""The newest so many runs are drawn."""
RUNS_OF_MEDIAN = 3
MAX_WORSE = 1.1


@click.command(epilog="Example: python -m tests.benchmarks.trend Kafka 'cold open'")
@click.argument("words", nargs=-1)
@click.option("--machine", default=machine_kind, help="Kind of machine; by default this one's.")
@click.option(
    "--history",
    type=click.Path(file_okay=False, path_type=Path),
    default=HISTORY,
    help="Folder with a file for each kind.",
)
@click.option("--since", help="Name the figures that became worse since this commit.")
def main(words: tuple[str, ...], machine: str, history: Path, since: str | None) -> None:
    """Draw what became of each benchmark's figure."""
    file = history / f"{machine}.jsonl"
    if not file.exists():
        known = ", ".join(sorted(each.stem for each in history.glob("*.jsonl"))) or "none"
        raise click.ClickException(
            f"There are no results of {machine}; kinds with results: {known}. Take one of them with"
            " --machine, or measure here: pytest tests/benchmarks --benchmark --keep-results."
        )
    runs = kept(file)
    if since is None:
        for line in lines(runs, words, machine):
            click.echo(line)
        return
    runs = [run for run in runs if _has_ancestor(run.commit, since)]
    worse = list(find_worse(runs, words))
    click.echo("\n".join(worse) or f"No figure of {len(runs)} runs since {since} became worse.")
    raise SystemExit(1 if worse else 0)


def _has_ancestor(commit: str, ancestor: str) -> bool:
    """Tell whether a run's commit is another one, or after it.

    Raises:
        click.ClickException: The clone does not know them.
    """
    words = ["git", "merge-base", "--is-ancestor", ancestor, commit.rstrip("+")]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode > 1:
        raise click.ClickException(done.stderr.strip() or f"Git does not know {ancestor}.")
    return done.returncode == 0


def find_worse(runs: Sequence[Run], words: Sequence[str] = ()) -> Iterator[str]:
    """Yield a line for each figure whose newest median is worse than its best one."""
    for work, cells in _choose(by_work(runs), words):
        figures = [figure(ours) for ours, _, _ in cells]
        values, unit = [value for value, _ in figures], figures[0][1]
        many = max(1, len(values) - RUNS_OF_MEDIAN + 1)
        medians = [statistics.median(values[at : at + RUNS_OF_MEDIAN]) for at in range(many)]
        # Of rates more is better, of time and memory less.
        best = max(medians) if "/s" in unit else min(medians)
        low, high = sorted((best, medians[-1]))
        if high > low * MAX_WORSE:
            yield f"{work}: {medians[-1]:,g} {unit}, at best {best:,g} {unit}"


def _choose(
    found: dict[str, list[tuple[str, float | None, str]]], words: Sequence[str]
) -> Iterator[tuple[str, list[tuple[str, float | None, str]]]]:
    for work, cells in found.items():
        if not words or any(word.lower() in work.lower() for word in words):
            yield work, cells


def lines(runs: Sequence[Run], words: Sequence[str] = (), machine: str = "") -> Iterator[str]:
    """Yield two lines for each figure: what it is of, and what became of it."""
    first, last = runs[0], runs[-1]
    spell = f"{first.commit} ({first.date}) to {last.commit} ({last.date})"
    yield f"{machine}: {len(runs)} runs, {spell}"
    for work, cells in _choose(by_work(runs), words):
        values = [figure(ours)[0] for ours, _, _ in cells][-MAX_RUNS:]
        (before, unit), (now, _) = figure(cells[0][0]), figure(cells[-1][0])
        _, ratio, goal = cells[-1]
        change = f", {now / before:.2f}x" if before else ""
        peer = "" if ratio is None else f"; {ratio:.3g}x of its peer"
        yield work
        expected = f" (goal {goal})" if goal else ""
        yield f"  {bars(values)}  {before:,g} to {now:,g} {unit}{change}{peer}{expected}"


def by_work(runs: Sequence[Run]) -> dict[str, list[tuple[str, float | None, str]]]:
    """Return (ours, ratio, goal) of each run that has it, by what was measured.

    A row that begins with spaces says more of the row above it: its name begins with that one's.
    """
    found: dict[str, list[tuple[str, float | None, str]]] = {}
    for run in runs:
        above = ""
        for row in run.rows:
            if row.work.startswith(" "):
                work = f"{above}: {row.work.strip()}"
            else:
                work = above = row.work
            found.setdefault(work, []).append((row.ours, row.ratio, row.goal))
    return {work: cells for work, cells in found.items() if _is_of_one_unit(cells)}


def _is_of_one_unit(cells: Sequence[tuple[str, float | None, str]]) -> bool:
    """Tell whether figures can be compared: a unit that changed begins another trend."""
    try:
        units = [figure(ours)[1] for ours, _, _ in cells]
    except ValueError:
        return False
    return all(one == other for one, other in pairwise(units))


def bars(values: Sequence[float]) -> str:
    """Return a bar for each value; all start at zero, so that a small change looks small."""
    most = max(values, default=0.0)
    if most <= 0:
        return BARS[0] * len(values)
    return "".join(BARS[round(max(value, 0.0) / most * (len(BARS) - 1))] for value in values)


if __name__ == "__main__":
    main()
