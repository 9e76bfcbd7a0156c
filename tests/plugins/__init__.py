"""A distribution of third parties: `example` is what would be installed, with its entry points."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.doubles.installed import forget_parts

EXAMPLE = Path(__file__).parent / "example"
"""To be put on the path: its metadata stands beside its module, as in an installation."""


@contextmanager
def example_is_installed() -> Iterator[None]:
    """Put the distribution on the path of this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLE))
        forget_parts()
        yield
    forget_parts()
