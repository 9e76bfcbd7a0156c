"""Many tables in one streaming query: rows as encoded records, offsets as a map per table.

A Python source costs a process on the driver and every query its own micro-batches, so tables
whose sinks take finished records share them. What is done to one table does not touch the others:

- A batch is planned from its end offset alone (`group_offset`), so Spark may repeat it at any time.
- A table that cannot be planned keeps its offset, and the others go on (`follower`).
- A table whose rows cannot be read when Spark has logged the batch already is held back
  (`holds`): the batch is repeated without it, and where it really stands is durable.
- Tables join and leave between two batches, without a new query (`members`).

What users see of it:

- Schema changes need no restart: each row is encoded under its own commit's schema.
- Limits are shared fairly: a batch admits 1000 files or 256 MiB of all tables, each at most an
  equal share of what is left.
- Tables come, go, pause, resume and are reset (also over HTTP) between two batches.
- A table whose rows cannot be read, or whose folder cannot be written, makes the batch fail once;
  it is held back, and the query repeats the batch without it, within seconds. It is tried again
  from where it really stands: by itself after what may pass, else after `resume` or a restart.
  Nothing of the failed try stays in files and transactions; into Kafka at least once, what it sent
  comes again.
- Files are named `group-<life>-<batch>-<n>.jsonl` and sort in the order of delivery; a repeated
  batch replaces its own, or writes nothing where all of them were there. A life ends where a reset
  or another group begins. What files had before a reset stays in them.
- The checkpoint of a group is not put back from a copy: into files, and into Kafka exactly once, it
  is refused where other rows were delivered since under the same numbers. Of files that holds as
  long as the rest of the group's folder stays. One that is removed begins again.
- Another password moves no table; other brokers, users or options of the producer do. It begins in
  the other group behind what the one before has delivered, exactly once as the sink tells it.
- The checkpoint of a query of the table's own is carried over when it becomes part of a group, and
  kept beside as `_<table>.before-its-group`; the way back is refused with an error that says so.
"""
