"""Where groups keep their files, whatever tables are called."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailerd.changefeed.offset import Offset, Version
from tailerd.config.sections import is_table_name
from tailerd.spark.group.assignments import Assignments


def at(version: int) -> Offset:
    return Offset(table_id="id-1", version=Version(version))


def own_checkpoint(folder: Path, version: int) -> None:
    """A query of the table's own that has done one batch."""
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    (folder / "metadata").write_text('{"id":"9e107d9d-372b-4b6c-9a3e-5a5f6b7c8d9e"}')
    (folder / "offsets/0").write_text(f"v1\n{{}}\n{at(version).to_json()}")
    (folder / "commits/0").write_text("v1\n{}")


@pytest.mark.parametrize("name", ["groups", "orders.before-its-group"])
def test_no_table_moves_the_groups_aside(tmp_path: Path, name: str) -> None:
    assignments = Assignments(tmp_path)
    own_checkpoint(tmp_path / "orders", 7)
    assert assignments.assign("orders", "lines", {}, 9).begin == at(7)
    before = assignments.find("orders")
    assert assignments.assign(name, "lines", {}, 9).begin is None
    assert assignments.find("orders") == before
    assert assignments.offset("orders") == at(7)


def test_no_table_can_have_a_name_of_those_folders() -> None:
    assert not is_table_name("_groups")
    assert not is_table_name("_orders.before-its-group")


def test_a_checkpoint_that_is_carried_over_again_is_kept_under_another_name(tmp_path: Path) -> None:
    for number, version in enumerate((5, 6)):
        own_checkpoint(tmp_path / "orders", version)
        assert Assignments(tmp_path).assign("orders", "lines", {}, 9).begin == at(version)
        # Somebody took the state of the groups back.
        (tmp_path / "_groups/assignments.json").unlink()
        assert len(list(tmp_path.glob("_orders.before-its-group*"))) == number + 1
