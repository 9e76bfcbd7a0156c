"""The running daemon, how it ends, and the file that it is configured by."""
