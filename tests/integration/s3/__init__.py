"""Tables in buckets of real servers, and what stands between."""
