"""Lance tables: manifests are read here, rows by the library."""
