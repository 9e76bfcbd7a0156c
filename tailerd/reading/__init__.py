"""File scans become Arrow batches: Parquet, deletion-vector filters, constants, casts."""
