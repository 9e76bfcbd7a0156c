"""Changes as HTTP requests: CloudEvents or JSON arrays, at least once."""
