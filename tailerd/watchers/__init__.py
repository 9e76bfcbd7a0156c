"""Storage events, which report that a table may have a new commit; polling is the fallback."""
