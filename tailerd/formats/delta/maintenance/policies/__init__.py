"""Decides which job is due, and why. Pure: each policy takes figures and a time."""
