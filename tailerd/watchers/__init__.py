"""Storage events: hints that a table may have changed. Listing decides."""
