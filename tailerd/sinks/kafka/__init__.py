"""Kafka: changes as records, at least once or exactly once, through kafka-python's sender.

Exactly once. Rows and offset are written in one Kafka transaction, the offset to the compacted
topic `__tailerd_offsets`. Readers with `isolation.level=read_committed` see each change once,
whatever process is killed and whenever. Each pipeline has a fixed `transactional_id`, by default
derived from the daemon's `name`, the table's name and the topic: the last process to claim it wins,
the other stops with `sink_fenced`. A delivery that exceeds `transaction_timeout_ms` (60 s) is
aborted and repeated in halves.

At least once. The offset is saved after every record is acknowledged by all in-sync replicas;
after a crash the last delivery may be repeated, in order; none is lost. Nothing prevents two
daemons from both delivering.

Order. All changes of one key are in one partition, in commit order. Within a commit, pure deletes
come before all other changes, across all its files, so that a key's last record matches the table
if the key identifies one row. The images of an update that are in one batch of a change file
(65,536 rows, at most 32 MiB) are one `u` record, or are adjacent; images in two files are a delete
and a create. A commit whose change files exceed one batch is buffered in memory, or read twice if
it is large. Without a `key`, records are spread over partitions in runs, order holds only within a
partition, and changes come in file order.

Times. Records carry the commit's time. A topic whose retention would delete rows of such an old
commit at once is rejected; the remedy is a larger `retention.ms`, or `timestamp: delivery`.

Not guaranteed. Retention or compaction of the topic removes records; partitions added later move
keys, as with every producer; `on_gap` other than `stop` skips changes as configured; a topic with
one in-sync replica may lose acknowledged records.

Failures. Restarting brokers, leader changes, broken connections and missing replicas are retried
for `delivery_timeout_ms` (60 s) before `/status` reports them. Wrong passwords, certificates,
rights, oversize rows and deleted topics stop that pipeline with one error, and the offset does not
move. Topic ids are saved with the offset (of topics chosen by a column, the first 500): a topic
that was deleted or recreated ends in `topic_recreated` within seconds, both in a running daemon and
at its next start. Dead letters have the reason in their headers and are counted in
`tailerd_dead_letter_records_total`.

Schemas. Values and keys of `avro`, `protobuf` and `json_schema` have their schemas in a registry:
`tailerd.sinks.kafka.schema_registry` describes when they are registered, and the reaction to an
incompatible one or to a registry that is down.

Required rights. Write and Describe on the topics, Read on the offsets topic, Write and Describe on
the transactional id.

With Spark, executors write (`remote_writer`): with exactly once they join the transaction that the
daemon began, and the daemon commits it with the offset.
"""
