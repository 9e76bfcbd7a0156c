"""Measures the size of a table and the length of its log."""
