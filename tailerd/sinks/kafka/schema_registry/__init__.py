"""A schema registry that speaks Confluent's interface: asked before the first record of a schema.

What is registered. The value's schema and, where records have keys, the key's, under the subjects
that `subject_strategy` names, before the first record that carries their ids. A change of the
table's schema registers a further version the same way, between two deliveries' records. Ids are
remembered by the process: the registry is asked once for each schema.

Compatibility. Before a schema is registered the registry is asked whether its own rule for the
subject allows it; which rule that is stays the registry's matter. What it forbids follows
`on_incompatible_schema`:

- `stop`: the pipeline stops with `incompatible_schema`, and the offset does not move.
- `dead_letter`: rows of that schema go to `dead_letter_topic`, as the bytes that their topic would
  have got, with the reason in their headers; their schema is registered under the subject of that
  topic and of the record's name, for which compatibility is switched off.
- `new_topic`: they go to `<topic>.v2`, then `.v3`, with subjects of their own, as does all that is
  delivered later with a schema that the newest of these allows.

When it is down. A request is tried `retries` times at each of `urls`, then the delivery waits and
is tried again as when brokers are down: nothing is lost, and `/status` says why. Schemas that are
known need no registry.
"""
