"""What the changes of Lance tables can say."""

from __future__ import annotations

from tailerd.formats.base import Capabilities, History, Ordering

CAPABILITIES = Capabilities(
    has_deletes=True,
    has_preimage=True,
    pairs_updates=True,
    has_intermediate_versions=True,
    ordering=Ordering.TOTAL,
    history=History.UNTIL_CLEANUP,
)
"""Updates are pairs where rows have stable ids, and where columns are rewritten in place."""
