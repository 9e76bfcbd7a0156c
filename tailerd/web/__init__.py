"""The HTTP listener for operators, probes and Prometheus.

The console at `/` shows the fleet (throughput, worst lag, delivery time, problems, log debt,
30-day forecast; each table in a line, sorted, grouped and filtered by the address), each table in
tabs with their own addresses, and the daemon: version, memory, threads, settings without secrets,
active alerts. `/docs` has the topics of `tailerd help`. The console shows the same values as
`/status`; when the daemon does not answer it turns grey and shows the time of its values. It loads
nothing from other servers; where a token is needed it prompts for it and drops it when the window
is closed.

The history it draws is kept in 32 MiB at most (less for each table where there are many) and in
`<state>/history`: rates, lags and delivery times of a week in points 10 s, 1 min and 15 min apart,
a timeline of events, commits, growth. Older commits are read from the log on request. Updates are
serialized once a second for all open pages.

`web: {rows: 20, mask: [email]}` adds change rows: the newest of tables on the Arrow engine, one
commit of any table, the history of one key; without the masked columns, which cannot be searched
either. One query at a time reads a table, concurrently with the deliveries, for 40 s at most.
Without `rows` none are kept and none are read.

Write access. On a loopback listener every client that sends `X-Tailerd` or a JSON body (a page in a
browser cannot). With `http.token` (or `TAILERD__HTTP__TOKEN`) only clients that send it as a bearer
token. A listener on another address without a token is read-only: it answers 403 with the reason.

Read access. Every client; with `http.read: token` only clients that send the token. `/healthz` and
`/readyz` then still answer every client, but name no table; Prometheus sends the token by
`authorization: {credentials_file: ...}`.

HTTPS is `http.tls: {cert, key}`; renewed files are loaded within half a minute. With `client_ca` a
client certificate counts like the token. The commands take their authorities from
`SSL_CERT_FILE`, and send the token, not a certificate.

Further limits. The listener refuses names in `Host` other than its address and `http.hosts`, bodies
beyond 16 KiB, connections that do not complete a request, including its body, within ten seconds,
readers that accept nothing for ten seconds, and of more than 256 connections the longest idle. It
does not count the requests of an address: a reverse proxy does that. `/status` and `/metrics` are
cached for twenty times as long as it took to compute them, at most a second (or twice as long as it
took, if that is more), and never beyond a request that changes something. Every answer forbids
scripts from elsewhere, frames and caching.

The metrics of tables (`table_metrics: false` switches them off) load each table's file list once,
concurrently with the deliveries, and then cost time proportional to each commit: files, bytes,
rows, file sizes, deletion vectors, deleted rows, commits and bytes since the last checkpoint,
growth in the last 24 hours as far as watched. Rows are left out if statistics are missing: a
`remove` without statistics makes them unknown until the daemon restarts. The same data yields the
lag in files and bytes; without it that lag is shown only if it is 0. While a pipeline is paused its
log is not polled: head and lag are `-`, unless it had a backlog.

Retention headroom is the time until the next undelivered version, or a file it needs, may be
cleaned up: the smaller of `delta.logRetentionDuration` and `delta.deletedFileRetentionDuration`,
from the version's time on.
"""
