"""TileDB arrays: cells at coordinates, with time travel."""
