from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailerd.rows.positions import Positions

NUMBERS = st.sets(st.integers(0, 3000), max_size=20)
RUNS = st.tuples(st.integers(0, 500), st.integers(0, 400)).map(
    lambda run: set(range(run[0], run[0] + run[1]))
)


def positions(numbers: set[int]) -> Positions:
    return Positions.from_ascending(np.array(sorted(numbers), np.int64))


@pytest.mark.attack
@given(one=NUMBERS | RUNS, other=NUMBERS | RUNS)
def test_a_union_has_the_positions_of_both(one: set[int], other: set[int]) -> None:
    found = positions(one).union(positions(other))
    assert found.to_numpy().tolist() == sorted(one | other)
    assert len(found) == len(one | other)
    assert np.concatenate([*found.parts()]).tolist() == sorted(one | other)


@pytest.mark.attack
def test_sets_of_millions_are_joined_as_bits() -> None:
    ascending = np.arange(0, 4_000_000, 2)
    found = Positions.from_ascending(ascending).union(Positions.from_ascending(ascending + 1))
    assert len(found) == 4_000_000
    assert found.nbytes < 1_000_000
    assert sum(len(part) for part in found.parts()) == 4_000_000
