"""Encoded records into Kafka: executors write, the driver ends the transaction."""
