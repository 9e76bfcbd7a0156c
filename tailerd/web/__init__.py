"""The HTTP listener: metrics and health."""
