"""Value formats, which encode change rows as keys and values of records."""
