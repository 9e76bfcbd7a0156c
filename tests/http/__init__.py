"""An HTTP endpoint of our own, for tests of the sink `http` and for trying it."""
