"""Many tables in one streaming query: rows as encoded records, offsets as a map per table.

A Python source costs a process on the driver and every query its own micro-batches, so tables
whose sinks take finished records share them. What is done to one table does not touch the others:

- A batch is planned from its end offset alone (`group_offset`), so Spark may repeat it at any time.
- A table that cannot be planned keeps its offset, and the others go on (`follower`).
- A table whose rows cannot be read when Spark has logged the batch already is held back
  (`holds`): the batch is repeated without it, and where it really stands is durable.
- Tables join and leave between two batches, without a new query (`members`).
"""
