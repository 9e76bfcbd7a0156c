"""Parses the files of an array; pure."""
