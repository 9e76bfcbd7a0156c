"""A sink and a value format for tailerd."""
