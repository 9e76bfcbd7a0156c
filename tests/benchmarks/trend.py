"""Draw what became of each benchmark's figure: `python -m tests.benchmarks.trend [WORDS]`.

For each figure of one kind of machine a bar for each run, the first and the newest figure, and what
one is of the other. Only figures with one of WORDS in their name, if any is given.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import click

from tests.benchmarks.results import HISTORY, Run, figure, kept, machine_kind

BARS = "▁▂▃▄▅▆▇█"
MAX_RUNS = 30
"""The newest so many runs are drawn."""


@click.command(epilog="Example: python -m tests.benchmarks.trend Kafka 'cold open'")
@click.argument("words", nargs=-1)
@click.option("--machine", default=machine_kind, help="Kind of machine; by default this one's.")
@click.option(
    "--history",
    type=click.Path(file_okay=False, path_type=Path),
    default=HISTORY,
    help="Folder with a file for each kind.",
)
def main(words: tuple[str, ...], machine: str, history: Path) -> None:
    """Draw what became of each benchmark's figure."""
    file = history / f"{machine}.jsonl"
    if not file.exists():
        known = ", ".join(sorted(each.stem for each in history.glob("*.jsonl"))) or "none"
        raise click.ClickException(
            f"There are no results of {machine}; kinds with results: {known}. Take one of them with"
            " --machine, or measure here: pytest tests/benchmarks --benchmark --keep-results."
        )
    for line in lines(kept(file), words, machine):
        click.echo(line)


def lines(runs: Sequence[Run], words: Sequence[str] = (), machine: str = "") -> Iterator[str]:
    """Yield two lines for each figure: what it is of, and what became of it."""
    first, last = runs[0], runs[-1]
    spell = f"{first.commit} ({first.date}) to {last.commit} ({last.date})"
    yield f"{machine}: {len(runs)} runs, {spell}"
    for work, cells in by_work(runs).items():
        if words and not any(word.lower() in work.lower() for word in words):
            continue
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
