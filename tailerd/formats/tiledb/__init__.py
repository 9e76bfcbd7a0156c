"""TileDB arrays: cells at coordinates, whose past the library can open."""
