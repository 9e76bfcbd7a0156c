"""Exact differences of rows: hashing, cancelling, pairing, ordering. Pure: Arrow and numpy only."""
