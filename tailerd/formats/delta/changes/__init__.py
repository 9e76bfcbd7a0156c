"""Changes of a Delta table."""
