"""Keeps tables' logs short: when (policies), what may be done (permission), doing it (jobs).

The writers of checkpoints, compactions, checksums, and the cleanup are in `tailerd.delta`; this
package decides when they are worth their cost, takes turns with other daemons by a lease, and runs
them beside the pipelines.
"""
