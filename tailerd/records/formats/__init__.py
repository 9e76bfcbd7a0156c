"""Value formats: change rows in, keys and values of records out."""
