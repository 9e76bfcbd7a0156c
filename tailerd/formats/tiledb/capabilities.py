"""What the changes of arrays can say."""

from __future__ import annotations

from tailerd.formats.base import Capabilities, History, Ordering

CAPABILITIES = Capabilities(
    has_deletes=True,
    has_preimage=True,
    pairs_updates=True,
    has_intermediate_versions=True,
    ordering=Ordering.CLOCK,
    history=History.UNTIL_CLEANUP,
)
"""Updates are pairs unless duplicates are allowed; versions between are given unless merged."""
