"""Files in buckets."""
