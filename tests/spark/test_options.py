"""The options of `format("tailerd")`."""

from __future__ import annotations

import string

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pyspark.sql.datasource import CaseInsensitiveDict

from tailerd.changefeed.change_task import ChangeMode
from tailerd.config import TableConfig
from tailerd.errors import UsageError
from tailerd.spark.options import READ_OPTIONS, ReadOptions
from tailerd.spark.supervisor import read_options


def test_every_option_is_read_whatever_its_case() -> None:
    options = CaseInsensitiveDict(
        {
            "path": "/data/orders",
            "STARTINGVERSION": "007",
            "endingVersion": "12",
            "maxfilespertrigger": "5",
            "maxBytesPerTrigger": "64 MiB",
            "changes": "CDF",
            "Snapshot": "False",
            "pollInterval": "0.5s",
            "allowedPaths": "/shared,/other",
            "partitiontimezone": " Europe/Berlin ",
        }
    )
    parsed = ReadOptions.parse(options)
    assert (parsed.path, parsed.start, parsed.end) == ("/data/orders", "7", "12")
    assert (parsed.limit.max_files, parsed.limit.max_bytes) == (5, 64 * 1024 * 1024)
    assert (parsed.changes, parsed.snapshot) == (ChangeMode.CDF, False)
    assert (parsed.poll_seconds, parsed.allowed_paths) == (0.5, ("/shared", "/other"))
    assert parsed.format_options["partition_timezone"] == "Europe/Berlin"


def test_without_options_the_defaults_are_those_of_delta() -> None:
    parsed = ReadOptions.parse({"path": "/data/orders"})
    assert (parsed.start, parsed.end, parsed.snapshot) == ("", "", None)
    assert (parsed.limit.max_files, parsed.changes) == (1000, ChangeMode.AUTO)


@pytest.mark.parametrize(
    ("options", "named", "reported"),
    [
        ({"startingverson": "1"}, "startingverson", "did you mean startingVersion?"),
        ({"entirelyElse": "true"}, "entirelyElse", "The options are path"),
        ({"readchangefeed": "false"}, "readChangeFeed", "always gives changes"),
        ({"failOnDataLoss": "false"}, "failOnDataLoss", "always an error"),
        ({"skipChangeCommits": "true"}, "skipChangeCommits", "filter by _change_type"),
        ({"versionAsOf": "3"}, "versionAsOf", "snapshot=true and endingVersion"),
        ({"startingVersion": "1", "startingTimestamp": "2024-01-01"}, "startingTimestamp", "one"),
        ({"endingVersion": "1", "endingTimestamp": "2024-01-01"}, "endingTimestamp", "one of them"),
        ({"startingVersion": "5", "endingVersion": "4"}, "endingVersion=4", "inclusive"),
        (
            {"startingTimestamp": "2024-01-02", "endingTimestamp": "2024-01-01T23:59:59Z"},
            "endingTimestamp=2024-01-01T23:59:59Z",
            "range is empty",
        ),
        ({"endingTimestamp": "2024-02-30"}, "endingTimestamp", "Write it like 2024-02-29"),
        ({"startingVersion": "9" * 5000}, "startingVersion", "version number or `latest`"),
        ({"endingVersion": "-3"}, "endingVersion='-3'", "version number"),
        ({"schemaVersion": "-3"}, "schemaVersion='-3'", "version number"),
        ({"maxFilesPerTrigger": "-1"}, "maxFilesPerTrigger='-1'", "above 0"),
        ({"maxFilesPerTrigger": "9" * 5000}, "maxFilesPerTrigger", "above 0"),
        ({"maxBytesPerTrigger": "9" * 5000}, "maxBytesPerTrigger", "256m"),
        ({"maxBytesPerTrigger": "-1g"}, "maxBytesPerTrigger='-1g'", "not a valid size"),
        ({"pollInterval": "-1"}, "pollInterval='-1'", "2s"),
        ({"columns": "a,,b"}, "columns='a,,b'", "between two commas"),
        ({"columns": "a, b,a"}, "columns='a, b,a'", "names a twice"),
        ({"startingVersion": "latest", "snapshot": "true"}, "snapshot=true", "contradict"),
        ({"startingVersion": "-1"}, "startingVersion", "version number or `latest`"),
        ({"startingVersion": "²"}, "startingVersion", "version number or `latest`"),
        ({"endingVersion": "latest"}, "endingVersion", "version number"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp", "Write it like 2024-02-29"),
        ({"snapshot": "yes"}, "snapshot", "neither true nor false"),
        ({"changes": "all"}, "changes", "auto, compare, cdf, files"),
        ({"maxFilesPerTrigger": "0"}, "maxFilesPerTrigger", "above 0"),
        ({"maxBytesPerTrigger": "a lot"}, "maxBytesPerTrigger", "256m"),
        ({"maxBytesPerTrigger": "0g"}, "maxBytesPerTrigger", "not a valid size"),
        ({"pollInterval": "often"}, "pollInterval", "2s"),
        ({"pollInterval": "nan"}, "pollInterval", "2s"),
    ],
)
def test_a_wrong_option_is_one_error_that_names_it(
    options: dict[str, str], named: str, reported: str
) -> None:
    with pytest.raises(UsageError) as raised:
        ReadOptions.parse({"path": "/data/orders", **options})
    assert named in str(raised.value)
    assert reported in str(raised.value)


def test_a_missing_path_is_named() -> None:
    with pytest.raises(UsageError, match="path is missing"):
        ReadOptions.parse({})


ALPHABET = string.ascii_letters


@given(data=st.data(), name=st.sampled_from(sorted(READ_OPTIONS)))
def test_a_misspelt_option_is_answered_with_the_right_name(data: st.DataObject, name: str) -> None:
    location = data.draw(st.integers(0, len(name) - 2))
    letter = data.draw(st.sampled_from(ALPHABET))
    wrong = data.draw(
        st.sampled_from(
            [
                name[:location] + name[location + 1 :],
                name[:location] + letter + name[location:],
                name[:location] + letter + name[location + 1 :],
                name[:location] + name[location + 1] + name[location] + name[location + 2 :],
                name[:location] + "_" + name[location:],
                name.upper() + letter,
            ]
        )
    )
    assume(wrong.lower() not in {each.lower() for each in READ_OPTIONS})
    with pytest.raises(UsageError) as raised:
        ReadOptions.parse({"path": "/data/orders", wrong: "1"})
    assert f"did you mean {name}?" in str(raised.value)


def test_allowed_paths_are_a_list_that_may_hold_commas_or_names_between_commas() -> None:
    sink = {"kind": "console"}
    table = TableConfig.model_validate(
        {"path": "/x", "allowed_paths": ["/a,b", "/c"], "sink": sink}
    )
    assert ReadOptions.parse(read_options(table)).allowed_paths == ("/a,b", "/c")
    none = TableConfig.model_validate({"path": "/x", "sink": sink})
    assert ReadOptions.parse(read_options(none)).allowed_paths == ()
    given = ReadOptions.parse({"path": "/x", "allowedPaths": "/a,/c"})
    assert given.allowed_paths == ("/a", "/c")
    for text in ('["/a"', "[1]"):
        with pytest.raises(UsageError, match="allowedPaths"):
            ReadOptions.parse({"path": "/x", "allowedPaths": text})


def test_the_zone_of_a_table_becomes_the_option_and_a_wrong_one_is_named() -> None:
    table = {"path": "/x", "sink": {"kind": "console"}}
    zoned = TableConfig.model_validate({**table, "partition_timezone": "Asia/Tokyo"})
    assert (
        ReadOptions.parse(read_options(zoned)).format_options["partition_timezone"] == "Asia/Tokyo"
    )
    assert "partitionTimezone" not in read_options(TableConfig.model_validate(table))
    for text in ("Tokyo", "", "+09:00"):
        with pytest.raises(UsageError, match=r"partitionTimezone is .*such as Europe/Berlin"):
            ReadOptions.parse({"path": "/x", "partitionTimezone": text})


@pytest.mark.parametrize(
    "options",
    [
        {"readChangeFeed": "true", "startingVersion": "3"},
        {"readchangedata": "TRUE"},
        {"failOnDataLoss": "true"},
        {"ignoreDeletes": "true", "ignoreChanges": "true", "ignoreFileDeletion": "true"},
        {"skipChangeCommits": "false", "withEventTimeOrder": "false"},
    ],
)
def test_a_program_for_deltas_source_moves_by_changing_one_word(options: dict[str, str]) -> None:
    same = {name: text for name, text in options.items() if name == "startingVersion"}
    assert ReadOptions.parse({"path": "/t", **options}) == ReadOptions.parse({"path": "/t", **same})
