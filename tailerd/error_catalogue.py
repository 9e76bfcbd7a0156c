"""What every error code means and what to do about it: for `tailerd help errors`.

The cause is the class's docstring; the message of an error is more specific.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tailerd import errors
from tailerd.remedies import PYTHON, RESTART, SPARK, TAIL, fill_in, pipeline_reader

_RESTART = (
    f"For a pipeline, {fill_in(RESTART, pipeline_reader('NAME', 'FILE'))}; `on_gap` continues by"
    f" itself. In `tail`, {TAIL[RESTART]}; in Python, {PYTHON[RESTART]}; in Spark,"
    f" {SPARK[RESTART]}."
)
REMEDIES: Mapping[str, str] = {
    "config": "Correct the field that the message names; `tailerd help configuration` has all.",
    "usage": "See the command's --help.",
    "explorer_busy": "Try again; open a smaller commit, or read it with `tailerd tail`.",
    "missing_extra": "Install the extra that the message names, such as `tailerd[tiledb]`.",
    "state_in_use": "Stop the other daemon, or set `state` to another folder or prefix.",
    "pin_unreadable": "Write the pin again (`tailerd maintain TABLE --pin`), or remove the file.",
    "table": "See the message; `tailerd inspect TABLE` shows what can be read.",
    "not_a_table": "Check the path: it is the folder that contains the table's log.",
    "unsupported_feature": "Use a newer release, or remove the feature from the table.",
    "corrupt_log": "Restore the file from a backup, or let a writer repair the table.",
    "torn_commit": "Wait for the writer; if it died, remove or restore the file.",
    "log_changed": "Nothing: it is retried.",
    "commit_changed": "Find out which process rewrites the log, restore the commit, then reset the"
    " offset.",
    "checksum_mismatch": "Compare the table with a backup; delete a checksum file that is wrong.",
    "invalid_property": "Set the table property that the message names to a valid value.",
    "missing_version": _RESTART,
    "log_cleaned_up": "Nothing: it is retried.",
    "files_collected": "Keep files until they are delivered (`format_options: {spool: link}`), or"
    " set `on_gap`.",
    "unreadable_metadata": "Nothing while the writer is at work; else restore the metadata file.",
    "zone_assumed": "Set `partition_timezone` to the zone that the writer used.",
    "invalid_deletion_vector": "Restore the file from a backup, or skip the commit"
    " (`on_corrupt_commit: skip-and-record`).",
    "missing_data_file": "Restore the file, or skip the commit (`on_corrupt_commit:"
    " skip-and-record`); run VACUUM with a longer retention.",
    "unreadable_data_file": "Restore the file, or skip the commit (`on_corrupt_commit:"
    " skip-and-record`).",
    "too_large": "Raise `memory`, if the file is intact.",
    "schema_changed": "Start again with the `schemaVersion` that the message names; `tailerd run`"
    " does so by itself.",
    "transforms_mismatch": "Correct the field that the message names, then go on with"
    " `tailerd offsets accept NAME`.",
    "change_feed_disabled": "Use `changes: auto`, or start at a version with the feed enabled.",
    "table_recreated": _RESTART,
    "path_outside_table": "Allow the path: `allowed_paths`, or `--allow-path`.",
    "link_in_path": "Remove the symbolic link: maintenance writes and deletes through none.",
    "storage": "Check the disk or the network; it is retried.",
    "file_missing": "Restore the file that the message names.",
    "not_a_file": "Remove the pipe, socket or device from the table's folder.",
    "name_too_long": "Shorten the name that the message shows.",
    "file_exists": "Nothing: another process was first.",
    "access_denied": "Give this user the right that the message names.",
    "credentials_expired": "Renew the credentials; it is retried.",
    "bucket_missing": "Create the bucket, or correct its name.",
    "clock_skew": "Set this machine's clock (NTP); it is retried.",
    "conditional_put_unsupported": "Use a store that has If-None-Match, or switch maintenance off.",
    "sink": "Check the sink that the message names; it is retried.",
    "sink_refused": "Correct the cause in the message, then `tailerd resume NAME`.",
    "sink_fenced": "Run each pipeline in one process only.",
    "sink_too_slow": "Lower `max_bytes_per_batch`, or raise the sink's time limit.",
    "incompatible_schema": "Set `on_incompatible_schema`. Or change the registry's rule for the"
    " subject, or the sink's table.",
    "value_not_representable": "Correct the rows, or set `on_unrepresentable: null`.",
    "schema_not_registered": "Register the schema that the message shows, or set `auto_register`.",
    "topic_recreated": _RESTART,
    "commit_ahead": "Wait, or correct the clock of the writer; or set `timestamp: delivery`.",
    "engine": "Check Spark's own error in the message; it is retried.",
    "batch_retry": "Nothing: it is retried.",
    "offset": _RESTART,
    "transforms_changed": "Deliver all rows again (`tailerd offsets reset NAME --to snapshot`), go"
    " on with the new ones (`tailerd offsets accept NAME`), or set them back.",
    "pipeline_rebound": "Keep the offset with `tailerd offsets rebind`, or reset it.",
    "daemon_unreachable": "Start the daemon, or give its address with --http or --config.",
    "daemon_refused": "See the message: the daemon says why.",
    "maintenance_busy": "Nothing: another process maintains the table.",
    "maintenance_process": "Nothing: the job is tried again. Raise the memory limit if it was"
    " killed.",
    "bug": "Run the command again with --debug and report its output.",
}
"""Error code -> what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueEntry:
    """One error code.

    Attributes:
        is_retried: Whether a daemon retries by itself.
    """

    code: str
    cause: str
    remedy: str
    exit_status: int
    is_retried: bool


def catalogue() -> Iterator[CatalogueEntry]:
    """Yield every error that users meet, by code."""
    kinds = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type)
        and issubclass(kind, errors.TailerdError)
        and kind is not errors.TailerdError
    ]
    for kind in sorted(kinds, key=lambda each: each.code):
        cause = (inspect.getdoc(kind) or "").partition("\n\n")[0].replace("\n", " ")
        yield CatalogueEntry(
            code=kind.code,
            cause=cause,
            remedy=REMEDIES.get(kind.code, "See the message."),
            exit_status=kind.exit_status,
            is_retried=kind.retryable,
        )
