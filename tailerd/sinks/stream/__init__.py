"""Any Structured Streaming sink of Spark, by its name."""
