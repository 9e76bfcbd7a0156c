"""Shared by sinks that write topics: names, routing, control records, dead letters. Pure."""
