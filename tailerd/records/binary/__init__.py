"""Encode many rows at once: varints, numbers, and the concatenation of columns."""
