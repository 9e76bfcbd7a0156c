"""Storage events: events that a table may have a new commit. Polling is the floor under them."""
