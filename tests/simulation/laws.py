"""What must hold at the end of every seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

from tests.simulation.sim_table import Cell, Change
from tests.simulation.simulation import Simulation, ViolationError, World


def check_laws(simulation: Simulation) -> None:
    """Check every table.

    Raises:
        ViolationError: A law does not hold.
    """
    for world in simulation.worlds:
        _check_offsets(world)
        if world.doom:
            _check_nothing_invented(world)
            continue
        _check_exactly_once(world)
        _check_fold(world)
        allowed = 0 if world.stores_offsets else world.max_in_flight
        if not world.sink.is_transactional and world.sink.most_repeated() > allowed:
            raise ViolationError(
                f"{world.name}: more than {allowed} deliveries came again at once."
            )


def _check_offsets(world: World) -> None:
    reported = {(gap.start, gap.end) for gap in world.sink.gaps}
    for before, after in pairwise(world.offsets.history):
        # Where the next commit itself is gone, its snapshot comes instead, with the same version.
        is_gap = after.version == before.version and (before, after) in reported
        if after.is_before(before) and not is_gap:
            raise ViolationError(f"{world.name}: {before} was saved, and then {after}.")


def _check_exactly_once(world: World) -> None:
    expected = Counter(_expected(world))
    found = Counter(world.sink.rows_once())
    if found != expected:
        lost, doubled = expected - found, found - expected
        raise ViolationError(f"{world.name}: lost {_few(lost)}, too many {_few(doubled)}.")
    allowed = set(expected)
    if world.clean_rate:
        # Before a gap lie rows that came and were never acknowledged: not due, but real.
        for offset in world.offsets.history:
            allowed |= set(world.table.expected_from(offset))
    if not set(world.sink.rows()) <= allowed:
        raise ViolationError(f"{world.name}: rows that nobody wrote.")


def _expected(world: World) -> list[Change]:
    """Return what had to be delivered: all from the start on, but for gaps the sink heard of."""
    history = world.offsets.history
    if not world.clean_rate:
        return world.table.expected_from(history[0])
    reported = {(gap.start, gap.end) for gap in world.sink.gaps}
    found: list[Change] = []
    for before, after in pairwise(history):
        # A start saves the offset it found again, under its own epoch.
        if before != after and (before, after) not in reported:
            found += world.table.expected_from(before, after)
    return found


def _check_nothing_invented(world: World) -> None:
    if not world.offsets.history:
        return
    expected = Counter(world.table.expected_from(world.offsets.history[0]))
    if invented := Counter(world.sink.rows_once()) - expected:
        raise ViolationError(f"{world.name}: invented {_few(invented)}.")


def _check_fold(world: World) -> None:
    """A reader who applies what was delivered, repeats and all, has the table; without gaps."""
    start = world.offsets.history[0]
    if world.clean_rate:
        return
    is_late = world.plan.start == "latest"
    rows = dict(world.table.snapshots[start.version - 1]) if is_late else {}
    folded = fold(world.sink.rows(), rows)
    wanted = dict(world.table.snapshots[-1])
    if folded != wanted:
        raise ViolationError(f"{world.name}: folded it has {folded}, the table {wanted}.")


def fold(changes: Iterable[Change], rows: dict[int, str]) -> dict[int, str]:
    """Apply changes to rows by id, in the order of versions, what goes before what comes."""
    cells: dict[int, str] = dict(rows)
    for _, kind, key, value in sorted(changes, key=lambda c: (c[0], c[1] in _COMING)):
        if kind in _COMING:
            cells[key] = value
        else:
            cells.pop(key, None)
    return cells


_COMING = ("insert", "update_postimage")


def _few(changes: Counter[Change] | Counter[Cell]) -> str:
    return f"{changes.total()} rows {sorted(changes)[:4]}"
