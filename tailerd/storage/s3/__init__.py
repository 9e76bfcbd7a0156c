"""Buckets of S3 and of servers that implement its protocol: paths are `bucket/key`.

Requests. Polling an unchanged table is one GET of the next commit, answered 404. A commit with one
change file takes three requests: the commit, the 404 of the next one, the file. Opening takes a
GET, a LIST, the checkpoint and the commits after it. The log is listed at the start, at a gap, when
an event names a version that does not exist, every 10 minutes, and instead of that 404 after an
idle time in which another table could have replaced this one. `growth` shares the commits that are
read one by one, and lists the log once a minute while it changes. Writing a checkpoint reads its
commit twice, before and after it appears; a cleanup lists the log to plan and to delete.

Performance. The SDK sends the first GET to a bucket; later ones repeat it with another key, signed
and received by tailerd itself at a third of the CPU. Proxies from the environment, redirects and
other signatures are left to the SDK. Opening a data file fetches its last 2 MiB, and in a run of
small files also the next ones, concurrently. The columns of a row group are fetched in parallel
parts of 8 MiB, and the next row group while one is decoded, if it fits a batch (32 MiB).

Credentials. Settings that the section `storage` omits come from the SDK: `AWS_*`, profiles, web
identity, the machine's role; `AWS_SKIP_SIGNATURE=true` sends unsigned requests, `AWS_CA_BUNDLE`
names a custom certificate authority. Clones in another account need `buckets` entries with their
own accounts; their location also needs `allowed_paths`. The Spark engine passes all of this to
Spark's processes; in your own Spark program, executors need `AWS_*`, or the driver's settings.
Credentials appear in no log, page, error or state; a location that contains them
(`s3://key:secret@bucket`) is refused.

Failures. Transient errors, including truncated bodies, are retried with exponential backoff, within
a budget for a server that fails all the time. With `storage.hedge_after`, a GET without a first
byte after that time is sent a second time concurrently, at most for one GET in twenty. Expired
credentials are resolved again at every attempt, so a file, a program or a role can renew them
without notifying the daemon; meanwhile `/status` reports it. A missing bucket stops its pipelines;
restarted when it is back, they resume where they stopped. After a lost response, a conditional put
checks whether it had succeeded. Large checkpoints are uploaded in parts and appear atomically. A
cleanup deletes a thousand expired files per request, the oldest first, and retries those that
failed.

Conditional writes. Maintenance and leases need `If-None-Match`. A server that ignores it is
detected before the first such write, and maintenance reports it; tables are still followed.

Commit times are S3's, in whole seconds, incremented by a millisecond within one second, as in
Delta.

State in a bucket, `state: s3://bucket/prefix`: offsets, snapshots' file lists, pauses, records of
damaged commits, the page's history. A lease replaces the lock: a second daemon is refused after at
most 15 s, with the first one's name. If a daemon died on another machine, the next one starts
after a minute; meanwhile the log and `/status` (`problems`) report the holder and the longest
wait. A daemon that lost its state detects it at the next renewal, within 15 s, and exits. No clocks
are compared, and a suspended daemon can no longer change the state: each save of an offset creates
`offsets/<table>/<number>.json` under a free number (a put, a list, a delete), and a new holder
takes the next number first; pauses and pipeline records are saved in the same way, and the names of
other files carry the writer's token. What a suspended daemon had delivered before may be delivered
again.
The lease costs eight requests a minute.
"""
