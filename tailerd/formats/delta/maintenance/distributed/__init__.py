"""A checkpoint of a log too large for one process, written by the tasks of an engine."""
