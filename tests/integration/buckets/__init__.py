"""What holds for tables in the buckets of every cloud."""
