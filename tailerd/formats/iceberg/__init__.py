"""Iceberg tables: snapshots listed in one metadata file, which each commit replaces by another."""
