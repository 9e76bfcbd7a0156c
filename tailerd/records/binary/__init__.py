"""Bytes of many rows at once: varints, numbers, and how columns are put together."""
