"""Skeletons to copy: a table format, a store, a sink and a value format for tailerd."""
