"""Kafka: changes as records, at least once or exactly once, through kafka-python's sender.

Exactly once. Rows and offset go into one Kafka transaction, the offset into the compacted topic
`__tailerd_offsets`. Readers with `isolation.level=read_committed` see each change once, whatever
is killed and whenever. A fixed `transactional_id` per pipeline, made of the daemon's `name`, the
table's name and the topic where none is given: the last process to claim it wins, the other stops
with `sink_fenced`. A delivery that does not fit into
`transaction_timeout_ms` (60 s) is undone and comes again in halves.

At least once. The offset is saved after every record is acknowledged by all in-sync replicas;
after a crash the last delivery may come again, in order; none is lost. Nothing keeps two daemons
from both delivering.

Order. All changes of one key are in one partition, in the order of the commits. Of one commit, all
that only removes rows comes before the rest, over all its files, so that what a key has last is
what the table has, where a key names one row. The images of an update that are in one batch of a
change file (65,536 rows, at most 32 MiB) are one `u` record, or directly follow each other; those
that are in two files come as removal and creation. A commit whose change files are more than one
batch is held in memory, or read twice if it is large. Without a `key` records are spread in runs,
order holds within a partition only, and changes come in the order of the files.

Times. Records carry the commit's time. A topic that would delete rows of such an old commit right
away is refused, with the way out: another `retention.ms`, or `timestamp: delivery`.

What cannot be promised. Retention or compaction of the topic removes records; partitions added
later move keys, as with every producer; `on_gap` other than `stop` leaves out what it says; a
topic with one in-sync copy may lose what its broker acknowledged.

When brokers fail. A broker that restarts, a leader that moves, cut connections and missing
replicas end in recovery; it is tried for `delivery_timeout_ms` (60 s) before `/status` tells.
Wrong passwords, certificates, rights, oversize rows and deleted topics stop that pipeline with
one error, and the offset does not move. Ids of topics are kept with the offset (of topics that a
column chooses, those of the first 500): one that was deleted, or made again under its name, ends
in `topic_recreated` within seconds, while the daemon lives and at its next start. Dead letters have
the reason in their headers and are counted in `tailerd_dead_letter_records_total`.

Schemas. Values and keys of `avro`, `protobuf` and `json_schema` have theirs in a registry:
`tailerd.sinks.kafka.schema_registry` says when they are registered, and what happens where one is
not compatible or the registry is down.

Rights needed. Write and Describe on the topics, Read on the offsets topic, Write and Describe on
the transactional id.

On Spark executors write (`remote_writer`): exactly once they join the transaction that the daemon
began, and the daemon commits it with the offset.
"""
