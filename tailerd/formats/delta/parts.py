"""The optional parts of Delta's format, loaded when they are asked for: tailing needs none."""

from __future__ import annotations

from tailerd.formats.inspection import Inspector
from tailerd.formats.maintenance import Maintainer
from tailerd.formats.parts import Demo, OptionalParts
from tailerd.formats.statistics import Statistics


class DeltaParts(OptionalParts):
    """What a format may have; Delta has all that can be seen or done with a table."""

    @property
    def inspector(self) -> Inspector:
        """Shows versions, files and commits."""
        from tailerd.formats.delta.inspect import DeltaInspection

        return DeltaInspection

    @property
    def maintainer(self) -> Maintainer:
        """Writes checkpoints, compactions and checksums, and deletes what has expired."""
        from tailerd.formats.delta.maintenance.maintainer import DeltaMaintainer

        return DeltaMaintainer()

    @property
    def statistics(self) -> Statistics:
        """Measures tables by their log."""
        from tailerd.formats.delta.stats.table_growth import open_growth

        return open_growth

    @property
    def demo(self) -> Demo:
        """Makes a table of orders."""
        from tailerd.formats.delta.demo import DEMO

        return DEMO
