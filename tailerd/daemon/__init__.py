"""The running daemon, its shutdown, and its configuration file."""
