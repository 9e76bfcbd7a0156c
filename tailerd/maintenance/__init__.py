"""Keeps tables' logs short: when (policies), what may be done (permission), doing it (jobs).

Each format defines its jobs (`tailerd.formats.maintenance`); this package decides when to assess a
table, excludes other daemons by a lease, and runs jobs in a separate process.
"""
