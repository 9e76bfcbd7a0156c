"""Keeps tables' logs short: when (policies), what may be done (permission), doing it (jobs).

Which jobs there are and what they do is the format's (`tailerd.formats.maintenance`); this package
decides when to look, takes turns with other daemons by a lease, and runs jobs in a process of their
own.
"""
