"""Table formats that can be asked for changes: one folder each, behind one contract (`base`)."""
