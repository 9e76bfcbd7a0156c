"""A real Kafka for tests: jars, brokers, clusters, certificates, and a second client."""
