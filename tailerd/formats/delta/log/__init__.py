"""Reading and writing the log: list, fetch, replay; checkpoints, compactions, checksums."""
