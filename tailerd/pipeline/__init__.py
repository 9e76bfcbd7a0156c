"""The delivery loop of one table: wait, plan, read, write, commit; in this process or on Spark.

Retryable errors (storage, sink, Spark) are retried after 0.2 s to 30 s with jitter, without limit
or up to `max_attempts`; `/status` shows the error and `next_retry_ms`. Other errors stop that
pipeline as `failed`: the others continue, `/readyz` answers 503 and names it, and the daemon exits
with the status of the first failed table.

Gaps. `on_gap: stop | snapshot | latest` applies when the next version is gone, and when a table was
dropped and re-created or restored from a copy (table id and a hash of the schema are saved with
the offset). The last two move the offset and report it: an error line in the log,
`tailerd_gaps_total`, `gaps` and `last_gap` in `/status`, and in a file sink a `...gap.json` right
before the rows that follow; files of a replaced table are moved to `replaced-...`, not removed.
`offsets reset` records versions that it skips in the same way, with the reason `reset`.
Commits before a gap are delivered first; deliveries after it that the saved offset does not cover
are removed where the sink supports it. A gap met while stopping is left to the next start. With
such a policy the pipeline waits for a table or bucket that disappears; with `stop` it fails, and
continues at the next run or `resume`.

Damaged commits. `on_corrupt_commit: skip-and-record` skips a commit whose data, change or
deletion-vector file is missing or unreadable, and appends a line to
`<state>/corrupt_commits/<table>.jsonl` (in a bucket: a file to `corrupt_commits/<table>/`) before
the offset moves past it; `tailerd_commits_skipped_total` counts them. It reads every commit twice.
Snapshots are not covered: a damaged one stops.

An interrupted snapshot resumes after a restart from its file list in `<state>/spool/<table>`, even
if the log of that version is gone by then. Its data files must still exist.

`memory` bounds what all tables together read ahead of their sinks. A table takes no more than it
leaves for the others, so slow sinks slow only their own tables; each can always read one piece.
Memory that Parquet decodes for a single batch counts once it is allocated.

On Spark a delivery is planned here, and its rows are read and written by a task of a Spark job
(`remote_rows`); `memory` does not count the memory of those tasks.
"""
