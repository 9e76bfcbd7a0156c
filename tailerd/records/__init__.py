"""Encode Arrow batches as record keys and values, column by column. Pure: no I/O."""
