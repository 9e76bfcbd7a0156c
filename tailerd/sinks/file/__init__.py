"""Files in a folder: JSON lines or Parquet, exactly once."""
