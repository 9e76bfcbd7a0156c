"""The daemon and the PostgreSQL sink against a real server."""
