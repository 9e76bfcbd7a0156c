"""Keeps tables' logs short: when (policies), what may be done (permission), doing it (jobs).

What a job does is the format's (`tailerd.formats.delta.maintenance`); this
package decides when they are worth their cost, takes turns with other daemons by a lease, and runs
them beside the pipelines.
"""
