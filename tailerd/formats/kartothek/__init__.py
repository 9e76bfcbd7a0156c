"""Kartothek datasets: Parquet files referenced by one metadata file, without history."""
