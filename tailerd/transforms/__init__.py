"""Transforms of change rows: which columns, rows and values a feed delivers. Pure and columnar."""
