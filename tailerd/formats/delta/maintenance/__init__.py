"""Maintenance of a Delta log: jobs, and the policies that decide when each is due."""
