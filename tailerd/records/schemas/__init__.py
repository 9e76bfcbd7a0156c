"""A table's schema as Avro, Protobuf and JSON Schema text."""
