"""`tail -f` for lakehouse tables: from a commit to its rows, to a delivery, to an offset."""

__version__ = "0.1.0"
