"""Buckets of S3 and of servers that speak its protocol: paths are `bucket/key`.

What is asked for. A look at a table at rest is one GET of the next commit, answered 404. A commit
with one change file takes three requests: the commit, the next one's 404, the file. Opening takes
a GET, a LIST, the checkpoint and the commits after it. The log is listed at the start, at a gap,
when an event names a version that is not there, every 10 minutes, and in place of that 404 after
a rest in which another table could have taken this one's place. `growth` shares the commits that
are read one by one, and lists the log once a minute while it changes. A checkpoint asks twice for
the commit it is of, before it appears and after; a cleanup lists the log to plan and to delete.

How. The first GET of a bucket is the SDK's; the next ones repeat it with another key, signed and
received by tailerd itself at a third of the CPU. Proxies of the environment, redirects and other
signatures stay the SDK's business. A data file is opened with its last 2 MiB, the next files of a
run of small ones meanwhile; the columns of a row group come in parts of 8 MiB side by side, and
the next row group while one is decoded, if it fits a batch (32 MiB).

Credentials. What the section `storage` leaves out comes from the SDK: `AWS_*`, profiles, web
identity, the machine's role; `AWS_SKIP_SIGNATURE=true` asks without credentials, `AWS_CA_BUNDLE`
names an authority of your own. Clones in another account have `buckets` with accounts of their
own; their place also needs `allowed_paths`. The Spark engine passes it all on to Spark's
processes; in a Spark program of your own, executors need `AWS_*`, or what the driver has. They
are in no log, page, error or state; a place with credentials in it (`s3://key:secret@bucket`) is
refused.

When requests fail. What may pass is tried again with growing pauses, a body that breaks off too,
within a budget for a server that fails all the time. With `storage.hedge_after` a GET of which not
a byte came for so long is asked a second time beside, one in twenty at most. Expired credentials
are looked for again, with each try: whoever renews them, a file, a program, a role, need not tell
the daemon; meanwhile `/status` says so. A bucket that is gone stops its pipelines; started again
when it is back, they go on where they were. A conditional put whose answer was lost finds out
whether it had won. Large checkpoints are uploaded in parts and appear whole or not at all. A
cleanup deletes a thousand expired files with one request, the oldest first, and asks again for what
of it failed.

Conditional writes. Maintenance and leases need `If-None-Match`. A server that ignores it is
noticed before the first such write, and maintenance says so; tables are followed all the same.

Times of commits are S3's, whole seconds, and count up by a millisecond within one, as Delta does.

State in a bucket, `state: s3://bucket/prefix`: offsets, snapshots' file lists, pauses, records of
damaged commits, the page's past. A lease takes the place of the lock: a second daemon is refused
by the first one's name, after 15 s at most; after one that died elsewhere it goes on in a minute,
and meanwhile the log and `/status` (`problems`) say whom it waits for and how long at most. One
whose state was taken finds out at its next beat, within 15 s, and ends. Nobody's clock is
trusted, and a daemon that slept can save no offset any more: each saving creates
`offsets/<table>/<number>.json` under a free number (a put, a listing, a delete), and whoever
takes over takes the next number first. What such a daemon had given a sink before may come again;
the lease costs eight requests a minute.
"""
