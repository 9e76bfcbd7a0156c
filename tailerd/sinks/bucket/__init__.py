"""Files in a bucket, each row exactly once for readers of the manifest."""
