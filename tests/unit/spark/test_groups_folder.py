"""Where groups keep their files, whatever tables are called and whichever release wrote them."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailerd.changefeed.offset import Offset, Version
from tailerd.config.sections import is_table_name
from tailerd.errors import StorageError
from tailerd.spark.group.assignments import Assignments
from tailerd.spark.group.groups_folder import move_old_groups


def at(version: int) -> Offset:
    return Offset(table_id="id-1", version=Version(version))


def own_checkpoint(folder: Path, version: int) -> None:
    """A query of the table's own that has done one batch."""
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    (folder / "metadata").write_text('{"id":"9e107d9d-372b-4b6c-9a3e-5a5f6b7c8d9e"}')
    (folder / "offsets/0").write_text(f"v1\n{{}}\n{at(version).to_json()}")
    (folder / "commits/0").write_text("v1\n{}")


def by_an_older_release(state: Path) -> None:
    """Groups as they were kept in the folder `groups`."""
    old = state / "groups"
    for group in ("lines-001", "kafka-0a1b2c3d-001"):
        (old / group / "checkpoint/offsets").mkdir(parents=True)
    (old / "assignments.json").write_text(
        json.dumps(
            {
                "orders": {"group": "lines-001", "generation": 1, "begin": at(7).to_json()},
                "parcels": {"group": "kafka-0a1b2c3d-001", "generation": 2, "begin": None},
            }
        )
    )


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


def test_a_table_called_groups_keeps_its_own_checkpoint_beside_those_of_groups(
    tmp_path: Path,
) -> None:
    by_an_older_release(tmp_path)
    own_checkpoint(tmp_path / "groups", 5)
    assignments = Assignments(tmp_path)
    assert assignments.assign("groups", "lines", {}, 9).begin == at(5)
    assert assignments.offset("orders") == at(7)
    assert assignments.folder("lines-001").is_dir()
    assert not (tmp_path / "groups").exists()
    # It may be carried over once more, when somebody took its state back.
    own_checkpoint(tmp_path / "groups", 6)
    (tmp_path / "_groups/assignments.json").unlink()
    assert assignments.assign("groups", "lines", {}, 9).begin == at(6)
    asides = sorted(path.name for path in tmp_path.glob("_groups.before*"))
    assert asides == ["_groups.before-its-group", "_groups.before-its-group-2"]


def test_what_an_older_release_left_is_found_and_taken_over(tmp_path: Path) -> None:
    by_an_older_release(tmp_path)
    assignments = Assignments(tmp_path)
    # Who only looks moves nothing.
    assert assignments.offset("orders") == at(7)
    assert assignments.folder("lines-001") == tmp_path / "groups/lines-001"
    found = assignments.assign("orders", "lines", {}, 9)
    assert (found.group, found.generation, found.begin) == ("lines-001", 1, at(7))
    assert assignments.folder("lines-001") == tmp_path / "_groups/lines-001"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["_groups"]


def test_whoever_dies_between_two_renames_leaves_every_group_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_an_older_release(tmp_path)
    rename, renames = Path.replace, 0

    def dies(path: Path, target: Path) -> Path:
        nonlocal renames
        if renames == 1:
            raise OSError(5, "Input/output error")
        renames += 1
        return rename(path, target)

    with monkeypatch.context() as broken:
        broken.setattr(Path, "replace", dies)
        with pytest.raises(StorageError, match="cannot be moved"):
            move_old_groups(tmp_path)
    assignments = Assignments(tmp_path)
    assert assignments.offset("orders") == at(7)
    for group in ("lines-001", "kafka-0a1b2c3d-001"):
        assert (assignments.folder(group) / "checkpoint").is_dir()
    move_old_groups(tmp_path)
    assert sorted(os.listdir(tmp_path / "_groups")) == [
        "assignments.json",
        "kafka-0a1b2c3d-001",
        "lines-001",
    ]
    assert not (tmp_path / "groups").exists()


def test_a_folder_of_an_older_release_that_cannot_be_listed_is_an_error_with_its_mending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_an_older_release(tmp_path)
    listed = Path.iterdir

    def refused(self: Path) -> Iterator[Path]:
        if self.name == "groups":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return listed(self)

    # Who runs tests may be root, whom nothing is refused.
    monkeypatch.setattr(Path, "iterdir", refused)
    with pytest.raises(StorageError, match=r"groups cannot be read: P.*permissions"):
        move_old_groups(tmp_path)
