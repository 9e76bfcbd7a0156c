"""Build tables, offset stores and running pipelines from a configuration."""
