"""Remedies of errors in the words of their reader: a terminal, Python, Spark, a pipeline.

An error is raised without knowing its reader, so parts of its remedy stay open. `TailerdError`
fills them in with the words of one `Reader`.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

RESTART, START_AFTER, LEAVE_OUT = "{restart}", "{start_after}", "{leave_out}"
PIPELINE, CONFIG_FILE = "{pipeline}", "{config_file}"
RESET_PIPELINE = f"{RESTART}."
"""Parts of remedies that differ between readers; `TailerdError.address` fills them in."""

Reader = Mapping[str, str]
_UNKNOWN: Reader = {PIPELINE: "NAME", CONFIG_FILE: "FILE"}
PYTHON: Reader = {
    RESTART: 'pass since="snapshot"',
    START_AFTER: "pass a version after the commit as `since`",
    LEAVE_OUT: "leave the column out of `columns`",
    **_UNKNOWN,
}
TAIL: Reader = {
    RESTART: "use --from snapshot",
    START_AFTER: "start after the commit with --from",
    LEAVE_OUT: "leave the column out of --columns",
    **_UNKNOWN,
}
SPARK: Reader = {
    RESTART: "set the option snapshot to true; a stream also needs a new checkpointLocation",
    START_AFTER: "start after the commit with the option startingVersion",
    LEAVE_OUT: "leave the column out of the option columns",
    **_UNKNOWN,
}


def reset_command(pipeline: str, to: str = "snapshot") -> str:
    """Return the advice to reset a pipeline, in Markdown; its configuration is an open part."""
    return f"run `tailerd offsets reset {shlex.quote(pipeline)} --to {to} --config {CONFIG_FILE}`"


def pipeline_reader(name: str, config_file: str) -> Reader:
    """Return the words for the operator of a pipeline: commands that can be pasted."""
    return {
        RESTART: reset_command(name),
        START_AFTER: f"{reset_command(name, 'VERSION')} with a version after the commit",
        LEAVE_OUT: "leave the column out of `columns` of the table's section",
        PIPELINE: name,
        CONFIG_FILE: shlex.quote(config_file),
    }


KEEP_CHECKPOINT = (
    "Do not remove it while commits before its version are missing: nothing else says which files"
    " the table has. Restore it from a copy of the log; or, where a writer can still read the"
    " table, let it write a new checkpoint."
)
"""A remedy that holds for every reader."""


def fill_in(remedy: str, reader: Reader) -> str:
    """Return a remedy in the words of a reader."""
    for part, words in reader.items():
        remedy = remedy.replace(part, words)
    return remedy
