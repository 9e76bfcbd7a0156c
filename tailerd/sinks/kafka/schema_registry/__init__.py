"""Register record schemas in a schema registry with Confluent's API.

Registration. The value's schema and, if records have keys, the key's schema are registered under
the subjects of `subject_strategy`, before the first record that contains their ids. A change of the
table's schema registers a new version in the same way, between the records of two deliveries. The
daemon queries the registry once for each schema, and sends the ids to processes of the Spark
engine. The state keeps them.

Compatibility. Before a schema is registered, the registry checks it against the subject's
compatibility rule, which is configured in the registry. Rows with a schema that the rule forbids
are handled by `on_incompatible_schema`:

- `stop`: the pipeline stops with `incompatible_schema`, and the offset does not move.
- `dead_letter`: the rows go to `dead_letter_topic`, encoded as for their own topic, with the reason
  in their headers; their schema is registered under the subject of that topic and the record's
  name, for which compatibility is disabled.
- `new_topic`: the rows go to `<topic>.v2`, then `.v3`, with their own subjects, as do all later
  rows with a schema that the newest of these allows.

Outages. A request is tried `retries` times at each of `urls`; then the delivery waits and is
retried as when brokers are down. No data is lost, and `/status` shows the reason. Cached schemas
need no registry; after a restart their saved ids are used if the registry
fails.
"""
