"""The topics of `tailerd help`: files of `tailerd/docs`, and texts made from the code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib.resources import files

TOPICS: Mapping[str, str] = {
    "tutorial": "From a lake to files and Kafka in fifteen minutes.",
    "recipes": "Configurations for common tasks: a mirror, DuckDB, checkpoints, alerts, webhooks.",
    "troubleshooting": "What to do, by symptom.",
    "faq": "Short answers to frequent questions.",
    "kafka": "Changes into Kafka topics: records, keys, delivery guarantees, topics.",
    "http": "Changes as HTTP requests: CloudEvents, order, retries, signatures, rejected events.",
    "postgres": "Changes into PostgreSQL tables: mirrors, logs, snapshots, types, rights.",
    "files": "Changes as files in buckets: names, exactly once, the manifest, partitions.",
    "spark": "Changes in Spark programs, and the Spark engine of the daemon.",
    "s3": "Tables and state in buckets, notifications, rights.",
    "azure": "Tables and state in Azure Blob Storage: credentials, rights.",
    "google": "Tables and state in Google Cloud Storage: credentials, rights.",
    "formats": "Tables and features that can be read, and those that are refused.",
    "iceberg": "Iceberg tables: folders, catalogs, changes of each commit, gaps, refused tables.",
    "lance": "Lance tables: changes of each operation, gaps, refused tables, maintenance.",
    "tiledb": "TileDB arrays: versions, late commits, what merging takes away, maintenance.",
    "changes": "How tailerd finds the changed rows, and their order.",
    "transforms": "Columns, conditions and masks: what of a table a feed delivers.",
    "python": "Changes in Python: batches, pandas, Polars, DuckDB, offsets.",
    "maintenance": "Checkpoints, compaction, checksums and cleanup of table logs.",
    "operating": "The daemon: status, pausing, errors, gaps, reloading.",
    "deploying": "The daemon with pip, as a container, on Kubernetes, as a service of systemd.",
    "semantics": "Delivery guarantees: order, exactly once, restarts, schema changes.",
    "architecture": "How a commit becomes a delivery, and where the code for it is.",
    "comparison": "tailerd beside Debezium, Delta's change data feed, Feldera and others.",
    "migrating": "From Debezium, and from a Spark job with Delta's change data feed.",
    "configuration": "Every field of a configuration file. Made from the code.",
    "metrics": "Every metric and its labels. Made from the code.",
    "errors": "Every error code, its cause and remedy. Made from the code.",
}
"""Name of a topic -> its subject, in the order of the list."""


def topic_text(name: str) -> str:
    """Return a topic as Markdown, `configuration` as YAML.

    Raises:
        KeyError: There is no such topic.
    """
    if name in _GENERATED:
        return _GENERATED[name]()
    if name not in TOPICS:
        raise KeyError(name)
    return (files("tailerd") / "docs" / f"{name}.md").read_text(encoding="utf-8")


def _configuration() -> str:
    from tailerd.config.documents import example

    return example()


def _metrics() -> str:
    from tailerd.telemetry.metrics import metric_families

    lines = ["# Metrics", "", "`/metrics` of the daemon has these, in Prometheus' text format.", ""]
    lines += ["| metric | type | labels | what |", "|---|---|---|---|"]
    for family in metric_families():
        labels = ", ".join(family.labels) or "none"
        lines.append(f"| `{family.name}` | {family.kind} | {labels} | {_cell(family.about)} |")
    return "\n".join(lines) + "\n"


def _errors() -> str:
    from tailerd.error_catalogue import catalogue

    lines = [
        "# Errors",
        "",
        "An error is printed as `error[code]: problem, reason, remedy`; the code is also a label of"
        " `tailerd_errors_total`, a field of log lines and of `/status`. The exit status is the"
        " command's. Retried errors need no action unless they persist.",
        "",
    ]
    for entry in catalogue():
        retried = ", retried" if entry.is_retried else ""
        lines += [
            f"## {entry.code}",
            "",
            f"{entry.cause} Exit status {entry.exit_status}{retried}.",
            "",
            f"Remedy: {entry.remedy}",
            "",
        ]
    return "\n".join(lines)


def error_text(code: str) -> str | None:
    """Return the explanation of an error's code as Markdown; None if there is no such code."""
    from tailerd.error_catalogue import catalogue

    entry = next((each for each in catalogue() if each.code == code), None)
    if entry is None:
        return None
    if entry.is_retried:
        daemon = "The daemon retries by itself, after 0.2 s to 30 s; `tailerd status` shows when."
    else:
        daemon = "The daemon stops this pipeline, and the others continue. After the remedy, or"
        daemon += (
            " when the cause is gone, `tailerd resume NAME` continues it; a reset does so too."
        )
    lines = [
        f"# error[{code}]",
        f"**Cause.** {entry.cause}",
        f"**Remedy.** {entry.remedy} The message of the error says more.",
        f"**Exit status** of a command: {entry.exit_status}.",
        daemon,
        "All codes: `tailerd help errors`.",
    ]
    return "\n\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


_GENERATED: Mapping[str, Callable[[], str]] = {
    "configuration": _configuration,
    "metrics": _metrics,
    "errors": _errors,
}


def list_generated() -> Iterator[str]:
    """Yield the names of topics that are made from the code."""
    yield from _GENERATED
