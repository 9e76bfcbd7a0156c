"""The HTTP listener: what an operator, a probe and Prometheus ask the daemon.

The console at `/` shows the fleet (throughput, worst lag, delivery time, problems, log debt,
30-day forecast; each table in a line, sorted, grouped and filtered by the address), each table in
tabs with addresses of their own, and the daemon: version, memory, threads, settings without
secrets, alerts that hold. `/docs` has the topics of `tailerd help`. It says what `/status` says;
when the daemon does not answer it is grey and says as of when. It asks no other server for
anything; where a token is needed it asks for it and forgets it with the window.

The past it draws is kept in 32 MiB at most (less for each table where there are many) and in
`<state>/history`: rates, lags and delivery times of a week in points 10 s, 1 min and 15 min apart,
a timeline of events, commits, growth. Commits before that are read from the log when asked for.
Open pages share what is written down for them once a second.

`web: {rows: 20, mask: [email]}` adds change rows: the newest of tables on the Arrow engine, one
commit of any table, the history of one key; without the columns named, which cannot be searched
either. One look into a table at a time reads it in parallel to the deliveries, for 40 s at most.
Without `rows` none are kept and none are read.

Who may change something. On a loopback listener everybody who reaches it and sends `X-Tailerd` or
a JSON body (a page in a browser cannot). With `http.token` (or `TAILERD__HTTP__TOKEN`) only who
sends it as a bearer token. A listener on another address without a token shows everything and
changes nothing: it answers 403 and says why.

Who may look. Everybody who reaches the listener; with `http.read: token` who has the token.
`/healthz` and `/readyz` answer everybody and then name no table; Prometheus sends the token by
`authorization: {credentials_file: ...}`.

HTTPS is `http.tls: {cert, key}`; renewed files are taken within half a minute. With `client_ca` a
client certificate counts like the token. The commands take their authorities from
`SSL_CERT_FILE`, and show the token, not a certificate.

What else is refused. Names in `Host` other than its address and `http.hosts`; more than 50
requests a second from one address (after 400 at once), counted apart for who has the token; after
ten wrong tokens further wrong ones from that address, never the right one; bodies beyond 16 KiB;
connections that say no whole request, its body too, within ten seconds, and of more than 512 (or
half of the files that the process may open, less 64) the quietest. `/status` and `/metrics` are
written down at most once a second, afresh after a request that changes something; of more than 32
callers that do not read their answer, the slowest are dropped. Every
answer forbids scripts from elsewhere, frames and caching.

The metrics of tables (`table_metrics: false` switches them off) open each table's files once,
beside the deliveries, and then cost what each commit is long: files, bytes, rows, file sizes,
deletion vectors, deleted rows, commits and bytes since the last checkpoint, growth in the last 24
hours as far as watched. Rows are left out where statistics do not tell them: a `remove` without
statistics makes them unknown until the daemon starts again. The same reading gives the lag in files
and bytes; without it that is told only where it is 0. While a pipeline is paused its log is not
looked at: head and lag are `-`, unless it was behind.

Retention headroom is the time until the next undelivered version, or a file it needs, may be
cleaned up: the smaller of `delta.logRetentionDuration` and `delta.deletedFileRetentionDuration`,
from the version's time on.
"""
