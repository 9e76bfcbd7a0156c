"""Convert a table's schema to Avro, Protobuf and JSON Schema text."""
