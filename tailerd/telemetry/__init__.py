"""Events first; log lines and metrics are derived from them."""
