"""Record values that need a registered schema: Avro, Protobuf, JSON Schema; CloudEvents."""
