"""Standard output of the daemon."""
