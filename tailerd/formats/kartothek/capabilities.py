"""What the changes of datasets can say."""

from __future__ import annotations

from tailerd.formats.base import Capabilities, History, Ordering

CAPABILITIES = Capabilities(
    has_deletes=True,
    has_preimage=True,
    pairs_updates=False,
    has_intermediate_versions=False,
    ordering=Ordering.OBSERVED,
    history=History.NONE,
)
"""Of two commits between two looks only the sum is seen, and a dataset keeps no history."""
