"""Table formats whose changes can be read: one package each, implementing one contract (`base`)."""
