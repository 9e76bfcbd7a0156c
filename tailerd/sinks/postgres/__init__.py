"""A PostgreSQL table as a sink: a mirror by key, or a log of the changes."""
