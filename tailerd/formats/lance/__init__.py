"""Lance tables: manifests are parsed here, rows are read with pylance."""
