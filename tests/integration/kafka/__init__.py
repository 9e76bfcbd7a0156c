"""The daemon and the Kafka sink against a real broker."""
