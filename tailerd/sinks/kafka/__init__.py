"""Kafka: changes as records, at least once or exactly once, through kafka-python's sender."""
