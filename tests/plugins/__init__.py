"""A distribution of third parties: `example` is what would be installed, with its entry points."""

from pathlib import Path

EXAMPLE = Path(__file__).parent / "example"
"""To be put on the path: its metadata stands beside its module, as in an installation."""
