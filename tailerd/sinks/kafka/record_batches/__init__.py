"""Kafka's record batches: records as bytes, partitions of keys, compression. Pure."""
