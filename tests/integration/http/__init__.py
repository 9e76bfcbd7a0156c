"""The daemon and a real HTTP endpoint."""
