"""Delta Lake's log: the pure protocol core and the shell that feeds it."""
