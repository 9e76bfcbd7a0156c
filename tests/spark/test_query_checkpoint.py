"""A supervised query's checkpoint that cannot be gone on from is one error with its mending."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tailerd.changefeed.offset import Offset, Version
from tailerd.errors import (
    EngineError,
    MissingVersionError,
    OffsetError,
    StorageError,
    TableRecreatedError,
)
from tailerd.spark.checkpoints import batch_end
from tailerd.spark.query_checkpoint import check_checkpoint, make_private, with_checkpoint

FIELDS = json.loads(Offset(table_id="t", version=Version(3)).to_json())


def checkpoint(folder: Path, batches: int = 3) -> Path:
    """As Spark leaves it: the last micro-batch is planned and not done."""
    location = folder / "orders"
    for part in ("offsets", "commits"):
        (location / part).mkdir(parents=True)
    (location / "metadata").write_text('{"id":"9e107d9d-372b-4b6c-9a3e-5a5f6b7c8d9e"}')
    for number in range(batches):
        line = json.dumps({**FIELDS, "version": number, "schema_version": 2})
        (location / f"offsets/{number}").write_text(f'v1\n{{"batchWatermarkMs":0}}\n{line}')
        (location / f"offsets/.{number}.crc").write_bytes(b"crc")
        if number < batches - 1:
            (location / f"commits/{number}").write_text('v1\n{"nextBatchWatermarkMs":0}')
    return location


def test_one_as_spark_leaves_it_is_good(tmp_path: Path) -> None:
    check_checkpoint(checkpoint(tmp_path))
    check_checkpoint(tmp_path / "not there yet")
    (tmp_path / "empty").mkdir()
    check_checkpoint(tmp_path / "empty")


def test_old_micro_batches_may_be_gone_and_a_missing_commit_is_only_repeated(
    tmp_path: Path,
) -> None:
    location = checkpoint(tmp_path)
    (location / "offsets/0").unlink()
    (location / "commits/1").unlink()
    check_checkpoint(location)


def test_an_offset_without_the_fields_that_came_later_is_read(tmp_path: Path) -> None:
    location = checkpoint(tmp_path)
    (location / "offsets/2").write_text(f"v1\n{{}}\n{json.dumps(FIELDS)}")
    check_checkpoint(location)


def test_a_log_of_another_release_of_spark_is_left_to_spark(tmp_path: Path) -> None:
    location = checkpoint(tmp_path)
    (location / "offsets/2").write_text("v2\n{}\n{}")
    check_checkpoint(location)


def _cut(location: Path) -> None:
    path = location / "offsets/2"
    path.write_text(path.read_text()[:60])


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "an empty offset": (lambda p: (p / "offsets/2").write_text(""), "offsets/2 is cut off"),
    "an offset without its end": (_cut, "offsets/2: The offset"),
    "no text": (lambda p: (p / "offsets/2").write_bytes(b"\xff\xfe\x00"), "offsets/2 is cut off"),
    "an empty file of metadata": (lambda p: (p / "metadata").write_text(""), "metadata, which"),
    "half a file of metadata": (lambda p: (p / "metadata").write_text('{"id":"9e'), "metadata"),
    "no metadata": (lambda p: (p / "metadata").unlink(), "metadata, which names the query"),
    "an end without its offset": (
        lambda p: (p / "commits/7").write_text("v1\n{}"),
        "commits/7 says that a micro-batch is done",
    ),
    "an empty commit": (lambda p: (p / "commits/1").write_text(""), "commits/1 is cut off"),
    "a commit of zeros": (lambda p: (p / "commits/0").write_bytes(bytes(9)), "commits/0 is cut"),
    "ends without any offset": (lambda p: shutil.rmtree(p / "offsets"), "commits/1 says"),
    "an offset of a newer release": (
        lambda p: (p / "offsets/2").write_text(f"v1\n{{}}\n{json.dumps({**FIELDS, 'format': 9})}"),
        "a newer tailerd wrote it",
    ),
    "an offset of another source": (
        lambda p: (p / "offsets/2").write_text('v1\n{}\n{"reservoirVersion":3}'),
        "offsets/2: The offset",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_one_is_named_with_what_mends_it(tmp_path: Path, damage: str) -> None:
    location = checkpoint(tmp_path)
    do, reported = DAMAGES[damage]
    do(location)
    with pytest.raises(OffsetError) as raised:
        check_checkpoint(location)
    assert reported in str(raised.value)
    assert f"`rm -r {location}`" in str(raised.value)
    assert not raised.value.retryable


@pytest.mark.parametrize("text", ["", "v1", "v1\n{}\n{", "v1\n{}\n3"])
def test_an_end_that_is_cut_off_is_an_error_with_its_path(tmp_path: Path, text: str) -> None:
    location = checkpoint(tmp_path)
    assert batch_end(location, 2)["version"] == 2
    (location / "offsets/2").write_text(text)
    with pytest.raises(OffsetError, match="offsets/2 is cut off"):
        batch_end(location, 2)
    with pytest.raises(OffsetError, match="offsets/7 cannot be read"):
        batch_end(location, 7)


@pytest.mark.parametrize("kind", [TableRecreatedError, MissingVersionError, OffsetError])
def test_an_error_about_an_offset_says_where_it_is_kept(
    tmp_path: Path, kind: type[OffsetError]
) -> None:
    reported = with_checkpoint(kind("It is another table.", remedy="Look."), tmp_path)
    assert type(reported) is kind
    assert str(reported).startswith("It is another table. Look. Spark keeps the offset in")
    assert f"`rm -r {tmp_path}` and empty the sink" in str(reported)
    assert with_checkpoint(reported, tmp_path) is reported


def test_other_errors_stay_as_they_are(tmp_path: Path) -> None:
    error = EngineError("Java is gone.")
    assert with_checkpoint(error, tmp_path) is error


def test_what_is_around_a_checkpoint_is_for_this_user_alone(tmp_path: Path) -> None:
    location = tmp_path / "state/checkpoints/orders"
    make_private(location)
    assert not location.exists()
    for folder in (location.parent, location.parent.parent):
        assert folder.stat().st_mode & 0o777 == 0o700
    location.parent.chmod(0o755)
    make_private(location)
    assert location.parent.stat().st_mode & 0o777 == 0o700


def test_a_state_where_nothing_can_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    with pytest.raises(StorageError, match=r"state/checkpoints cannot be written: Not a directory"):
        make_private(tmp_path / "state/checkpoints/orders")
