"""One table's delivery loop: wait, plan, read, write, commit, here or where an engine says.

Errors that may pass (storage, sink, Spark) are tried again after 0.2 s to 30 s with jitter, for
ever or up to `max_attempts`; `/status` shows the error and `next_retry_ms`. Others stop that
pipeline as `failed`: the rest go on, `/readyz` answers 503 and names it, and the daemon's exit
status is that of the first failed table.

Gaps. `on_gap: stop | snapshot | latest`, for a next version that is gone and for a table that was
dropped and created again or restored from a copy (table id and a hash of the schema are kept with
the offset). The last two move the offset and say so: an error line in the log,
`tailerd_gaps_total`, `gaps` and `last_gap` in `/status`, and in a file sink a `...gap.json` right
before what follows; files of a replaced table are moved to `replaced-...`, not removed. What lies
before a gap is delivered first; what was delivered behind it and not yet covered is taken back
where the sink can. A gap met while stopping is left to the next start. With such a policy a table
that disappears, or its bucket, is waited for; with `stop` it fails, and goes on at the next run
or `resume`.

Damaged commits. `on_corrupt_commit: skip-and-record` delivers nothing of a commit whose data,
change or deletion-vector file is missing or unreadable, and appends a line to
`<state>/corrupt_commits/<table>.jsonl` (in a bucket: a file to `corrupt_commits/<table>/`) before
the offset moves past it; `tailerd_commits_skipped_total` counts them. It reads every commit twice.
Snapshots are not covered: a damaged one stops.

A snapshot that is interrupted goes on after a restart from its file list in
`<state>/spool/<table>`, though the log of that version may be gone by then. Its data files must
still be there.

`memory` bounds what all tables together read ahead of their sinks. A table takes no more than it
leaves for the others, so slow sinks slow only their own tables; each always gets one piece on.
What Parquet decodes for a single batch counts from when it is there.

On Spark a delivery is planned here, and its rows are read and written by a task of a Spark job
(`remote_rows`); `memory` does not count what those tasks have.
"""
