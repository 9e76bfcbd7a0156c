"""The options of `format("tailerd")`: named as in Delta, checked once, and named in errors.

Spark passes option names in lower case, so names are compared case-insensitively and shown with the
spelling of this module.
"""

from __future__ import annotations

import datetime
import difflib
import enum
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tailerd.changefeed.change_task import ChangeMode
from tailerd.changefeed.limits import DEFAULT_READ_LIMIT, ReadLimit
from tailerd.changefeed.offset import Version
from tailerd.changefeed.points import parse_point
from tailerd.clock import zone_named
from tailerd.errors import MissingVersionError, UsageError
from tailerd.registry import AUTO, format_names, suggest_name
from tailerd.storage.stores import StoreSettings
from tailerd.transforms.options import MASK_KEY, make_view, parse_pairs
from tailerd.transforms.view import View

READ_OPTIONS = (
    "path",
    "startingVersion",
    "startingTimestamp",
    "endingVersion",
    "endingTimestamp",
    "maxFilesPerTrigger",
    "maxBytesPerTrigger",
    "changes",
    "snapshot",
    "schemaVersion",
    "columns",
    "rename",
    "where",
    "mask",
    "maskKey",
    "unchanged",
    "identity",
    "pollInterval",
    "allowedPaths",
    "partitionTimezone",
    "formatOptions",
    "tableFormat",
    "ledger",
)
DELTA_OPTIONS = {
    "versionAsOf": "Give snapshot=true and endingVersion to a batch.",
    "timestampAsOf": "Give snapshot=true and endingTimestamp to a batch.",
    "schemaTrackingLocation": "Leave it out: an error names the schemaVersion to use.",
}
"""Options of Delta's own sources that are not supported, and what to use instead."""

DELTA_IMPLIED_OPTIONS = {
    "readChangeFeed": ("true", "Format tailerd always gives changes."),
    "readChangeData": ("true", "Format tailerd always gives changes."),
    "failOnDataLoss": ("true", "A version that is missing is always an error."),
    "ignoreDeletes": ("", ""),
    "ignoreChanges": ("", ""),
    "ignoreFileDeletion": ("", ""),
    "skipChangeCommits": ("false", "Changed rows come as rows; filter by _change_type."),
    "withEventTimeOrder": ("false", "Rows come in the order of commits."),
}
"""Options of Delta's own source for tailerd's only behaviour: the accepted value (empty:
any, since deleted and changed rows are no error here), and the remedy for another value."""

_Choice = TypeVar("_Choice", bound=enum.StrEnum)
_BYTE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_MAX_DIGITS = 18
"""Longer numbers do not fit the 63 bits that Delta and Spark have for versions and sizes."""
_MAX_SHOWN = 60
_BYTES = re.compile(r"(\d+)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The parsed options of `spark.read` or `spark.readStream`.

    Attributes:
        path: The table's location.
        start, end: A version, `latest` (start only) or a timestamp, as text; empty when not given.
            The end is inclusive.
        changes: How the rows of a commit are found.
        schema_version: The version whose columns the rows have; None for the end of the range, or
            the head.
        view: Which columns, rows and values are read; None: all, unchanged.
        identity: Columns that identify a row, so that deletes and inserts found by comparing rows
            become updates; empty: they do not.
        snapshot: Whether the rows of the starting version come first; None if not given.
        limit: How much one micro-batch may admit; batch reads have no limit.
        poll_seconds: Longest time between two polls of the log without a notification; None for
            the default of the location.
        allowed_paths: Folders outside the table's own that its log may name files in.
        format_options: Options of the table's format, with `partition_timezone`: the IANA name of
            the zone of partition timestamps without one, None for UTC.
        storage: How files are reached; executors have only the data that is sent with a task.
        table_format: Name of the table's format; `auto` to recognise it.
        ledger: Folder or URL where a format without history keeps what was observed; empty: what
            is observed ends with the process.
    """

    path: str
    start: str = ""
    end: str = ""
    changes: ChangeMode = ChangeMode.AUTO
    snapshot: bool | None = None
    schema_version: Version | None = None
    view: View | None = None
    identity: tuple[str, ...] = ()
    limit: ReadLimit = DEFAULT_READ_LIMIT
    poll_seconds: float | None = None
    allowed_paths: tuple[str, ...] = ()
    format_options: Mapping[str, str | None] = field(default_factory=dict)
    storage: StoreSettings = field(default_factory=StoreSettings.from_environment)
    table_format: str = AUTO
    ledger: str = ""

    @classmethod
    def parse(cls, options: Mapping[str, str], storage: StoreSettings | None = None) -> ReadOptions:
        """Check and convert the options of a read.

        Args:
            storage: How files are reached; by default as this process's environment says.

        Raises:
            UsageError: An option is unknown, malformed or contradicts another one.
        """
        given = _check_names(options, READ_OPTIONS)
        start = _select_one(given, "startingVersion", "startingTimestamp")
        end = _select_one(given, "endingVersion", "endingTimestamp")
        parsed = cls(
            path=_required_path(given),
            start=_version(given, "startingVersion", allow_latest=True) or start,
            end=_version(given, "endingVersion", allow_latest=False) or end,
            changes=_choice(given, "changes", ChangeMode, ChangeMode.AUTO),
            snapshot=_boolean(given, "snapshot"),
            schema_version=_schema_version(given),
            view=_view(given),
            identity=_names(given, "identity"),
            limit=_read_limit(given),
            poll_seconds=_seconds(given, "pollInterval"),
            allowed_paths=_allowed_paths(given.get("allowedPaths", "")),
            format_options=_format_options(given),
            storage=storage or StoreSettings.from_environment(),
            table_format=_table_format(given),
            ledger=given.get("ledger", ""),
        )
        parsed._refuse_contradictions()
        return parsed

    @property
    def has_columns(self) -> bool:
        """Whether the option `columns` was given."""
        return self.view is not None and self.view.include is not None

    def _refuse_contradictions(self) -> None:
        if self.start == "latest" and self.snapshot:
            raise UsageError(
                "The options startingVersion=latest and snapshot=true contradict each other,"
                " because `latest` means only later commits.",
                remedy="Leave startingVersion out to get the snapshot of the newest version first.",
            )
        if self.start.isdigit() and self.end.isdigit() and int(self.end) < int(self.start):
            raise UsageError(
                f"The option endingVersion={self.end} comes before startingVersion={self.start},"
                " so the range is empty.",
                remedy="The ending version is inclusive: give the starting version or a later one.",
            )
        if _is_time(self.start) and _is_time(self.end) and _time(self.end) < _time(self.start):
            raise UsageError(
                f"The option endingTimestamp={self.end} comes before startingTimestamp="
                f"{self.start}, so the range is empty.",
                remedy="The ending time is inclusive: give the starting time or a later one.",
            )


@contextmanager
def naming(option: str, text: object) -> Iterator[None]:
    """Add the option that caused an error about the table's log to it, in `where` too."""
    try:
        yield
    except (MissingVersionError, UsageError) as error:
        named = error.restate(
            f"The option {option}={text} cannot be applied. {error.message}",
            remedy="Name a version that the table's log still has, or leave the option out.",
        )
        named.where = option
        raise named from error


def _check_names(options: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    by_lower = {name.lower(): name for name in names}
    given: dict[str, str] = {}
    for key, value in options.items():
        name = by_lower.get(key.lower())
        if name is None:
            if _is_so_already(key, str(value)):
                continue
            _refuse_deltas(key)
            close = difflib.get_close_matches(key.lower(), by_lower, n=1, cutoff=0.5)
            near = f"did you mean {by_lower[close[0]]}? " if close else ""
            raise UsageError(
                f"The option {key!r} is unknown to format tailerd: {near}"
                f"The options are {', '.join(names)}."
            )
        given[name] = str(value).strip()
    return given


def _is_so_already(key: str, value: str) -> bool:
    """Return whether an option of Delta requests tailerd's only behaviour.

    Raises:
        UsageError: It is such an option, with a value that asks for something else.
    """
    for name, (accepted, instead) in DELTA_IMPLIED_OPTIONS.items():
        if key.lower() == name.lower():
            if accepted and value.strip().lower() != accepted:
                raise UsageError(f"The option {name}={value} is not possible here.", remedy=instead)
            return True
    return False


def _refuse_deltas(key: str) -> None:
    for name, instead in DELTA_OPTIONS.items():
        if key.lower() == name.lower():
            raise UsageError(f"The option {name} is one of Delta's own source.", remedy=instead)


def _required_path(given: Mapping[str, str]) -> str:
    path = given.get("path", "")
    if not path:
        raise UsageError(
            "The option path is missing.",
            remedy='Give it: spark.read.format("tailerd").load(path).',
        )
    return path


def _select_one(given: Mapping[str, str], version: str, timestamp: str) -> str:
    if version in given and timestamp in given:
        raise UsageError(
            f"The options {version} and {timestamp} contradict each other, because both say the"
            " same thing.",
            remedy="Give one of them.",
        )
    text = given.get(timestamp, "")
    if timestamp in given:
        _check_time(timestamp, text)
    return text


def _check_time(name: str, text: str) -> None:
    try:
        is_time = isinstance(parse_point(text), datetime.datetime)
    except UsageError:
        is_time = False
    if not is_time or not re.match(r"^\d{4}-\d{2}-\d{2}", text):
        raise UsageError(
            f"The option {name}={_quote_text(text)} is not a valid timestamp.",
            remedy="Write it like 2024-02-29, 2024-02-29 12:34:56 or 2024-02-29T12:34:56.123Z.",
        )


def _table_format(given: Mapping[str, str]) -> str:
    name = given.get("tableFormat", AUTO)
    names = (AUTO, *format_names())
    if name not in names:
        raise UsageError(
            f"The option tableFormat={_quote_text(name)} is not a table format.",
            remedy=suggest_name(name, names),
        )
    return name


def _is_time(text: str) -> bool:
    return bool(text) and text != "latest" and not text.isdigit()


def _time(text: str) -> datetime.datetime:
    time = parse_point(text)
    assert isinstance(time, datetime.datetime)
    return time


def _version(given: Mapping[str, str], name: str, *, allow_latest: bool) -> str:
    if name not in given:
        return ""
    text = given[name]
    if allow_latest and text.lower() == "latest":
        return "latest"
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        allowed = "a version number or `latest`" if allow_latest else "a version number"
        raise UsageError(f"The option {name}={_quote_text(text)} is not {allowed}.")
    return str(int(text))


def _names(given: Mapping[str, str], option: str) -> tuple[str, ...]:
    if option not in given:
        return ()
    names = tuple(name.strip() for name in given[option].split(","))
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(
            f"The option {option}={given[option]!r} names {twice[0]} twice.",
            remedy="Name each column once.",
        )
    if not all(names):
        raise UsageError(
            f"The option {option}={given[option]!r} names no column between two commas.",
            remedy="Write names of the table's columns like a,b.",
        )
    return names


def _view(given: Mapping[str, str]) -> View | None:
    pairs = {name: _pairs(given, name) for name in ("rename", "mask") if name in given}
    return make_view(
        columns=_read_json(given.get("columns", "")) or _names(given, "columns") or None,
        rename=pairs.get("rename"),
        where=given.get("where"),
        mask=pairs.get("mask"),
        mask_key=given.get("maskKey") or os.environ.get(MASK_KEY),
        unchanged=given.get("unchanged", "keep"),
        key=_names(given, "identity"),
    )


def _pairs(given: Mapping[str, str], name: str) -> dict[str, str]:
    """Return the pairs of an option: `a=b,c=d`, or an object in JSON."""
    found = _read_json(given[name])
    return found if isinstance(found, dict) and found else parse_pairs(given[name], name)


def _read_json(text: str) -> Any:
    """Return the object or list of an option in JSON; None for another text."""
    if text[:1] not in ("{", "["):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _allowed_paths(text: str) -> tuple[str, ...]:
    """Read comma-separated locations, or a JSON list of them; no location begins with `[`."""
    if not text.startswith("["):
        return tuple(path for path in text.split(",") if path)
    try:
        paths = json.loads(text)
    except (ValueError, RecursionError):
        paths = [None]
    if not all(isinstance(path, str) for path in paths):
        raise UsageError(
            f"The option allowedPaths={_quote_text(text)} is not a JSON list of texts.",
            remedy='Write it like ["/shared", "/other"], or /shared,/other.',
        )
    return tuple(paths)


def _format_options(given: Mapping[str, str]) -> dict[str, str | None]:
    name, text = "partitionTimezone", given.get("partitionTimezone")
    if text is not None:
        try:
            zone_named(text)
        except ValueError as error:
            raise UsageError(f"The option {name} is {_quote_text(text)}, but {error}.") from error
    found = _pairs(given, "formatOptions") if given.get("formatOptions") else {}
    return {**found, "partition_timezone": text}


def _schema_version(given: Mapping[str, str]) -> Version | None:
    text = _version(given, "schemaVersion", allow_latest=False)
    return Version(int(text)) if text else None


def _boolean(given: Mapping[str, str], name: str) -> bool | None:
    text = given.get(name)
    if text is None:
        return None
    if text.lower() not in ("true", "false"):
        raise UsageError(f"The option {name}={text!r} is neither true nor false.")
    return text.lower() == "true"


def _choice(given: Mapping[str, str], name: str, kind: type[_Choice], default: _Choice) -> _Choice:
    text = given.get(name, default.value).lower()
    allowed = [member.value for member in kind]
    if text not in allowed:
        raise UsageError(f"The option {name}={text!r} is not one of {', '.join(allowed)}.")
    return kind(text)


def _read_limit(given: Mapping[str, str]) -> ReadLimit:
    files = given.get("maxFilesPerTrigger", str(DEFAULT_READ_LIMIT.max_files))
    if not (files.isascii() and files.isdigit() and len(files) <= _MAX_DIGITS and int(files) > 0):
        raise UsageError(
            f"The option maxFilesPerTrigger={_quote_text(files)} is not a number above 0."
        )
    size = given.get("maxBytesPerTrigger", str(DEFAULT_READ_LIMIT.max_bytes))
    return ReadLimit(max_files=int(files), max_bytes=_byte_count("maxBytesPerTrigger", size))


def _byte_count(name: str, text: str) -> int:
    match = _BYTES.fullmatch(text) if text.isascii() and len(text) <= _MAX_DIGITS else None
    count = int(match[1]) * _BYTE_UNITS[match[2].lower()] if match else 0
    if count <= 0:
        raise UsageError(
            f"The option {name}={_quote_text(text)} is not a valid size.",
            remedy="Write it like 256m or 1g.",
        )
    return count


def _quote_text(text: str) -> str:
    return repr(text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}...")


def _seconds(given: Mapping[str, str], name: str) -> float | None:
    if name not in given:
        return None
    text = given[name].removesuffix("s").strip()
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 86_400:
        raise UsageError(
            f"The option {name}={given.get(name)!r} is not a valid duration.",
            remedy="Write seconds, like 2s.",
        )
    return seconds
