"""The HTTP listener: what an operator, a probe and Prometheus ask the daemon."""
