"""Encoded records into Kafka: executors write, the driver ends the transaction.

Executors write as idempotent producers that stay open between micro-batches. Each partition of a
topic has one writer at a time: large micro-batches are divided by it, so that the order of a key
holds.

Exactly once. All tasks write into one transaction, which the driver ends together with a record
of the micro-batch in `offsets_topic`. A whole micro-batch, with all its tables, becomes visible
once or is undone and written again, whichever process died when; a task that Spark tries again
undoes it too, and `spark.speculation` is refused. The id is `transactional_id`, or
`tailerd-spark-<writer>`; the last process to claim it wins. A task that Spark gave up may begin a
transaction after the commit; when the brokers end it, before the next micro-batch, the group stops
with `sink_fenced`, and goes on where it was after a restart. The transaction lasts from the first
record to the last: a micro-batch that does not fit into `transaction_timeout_ms` is written again
as it is, so raise that, or lower `max_files_per_batch`. Dead letters go through the driver, up to
32 MiB of a task.

At least once. The header `tailerd.batch` is `<writer>/<number of the micro-batch>`; after a crash
the last numbers may come again. Tables with a `key` are refused while `spark.speculation` is on.
An attempt that Spark gives up without ending it, as on an executor that is cut off, may still send
what it has: an older record of a key then comes behind a newer one, which exactly once it cannot.

Names. Each group of tables is a writer of its own: `kafka-<what they have in common>-<number>-`,
then a random end, made once and kept in `writer.json` beside its checkpoint. So give the rights to
transactional ids by the prefix `tailerd-spark-` (`kafka-acls --resource-pattern-type prefixed`), or
name a `transactional_id`.

Ids of topics are kept in `<state>/pipelines`. They are compared when a table starts, and before
micro-batches: a table with a topic that was deleted stops with `topic_recreated`, the others go on.

A checkpoint that is removed begins again; one put back from a copy is wrong, and exactly once it is
refused where other rows were delivered since under the same numbers. Not here: `transaction_topic`,
`heartbeat_interval` and `offsets: kafka` are the Arrow engine's.
"""
