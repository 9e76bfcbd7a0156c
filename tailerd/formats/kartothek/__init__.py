"""Kartothek datasets: Parquet files named by one metadata file, without any history."""
