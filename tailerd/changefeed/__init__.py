"""The types that sources and sinks share: offset, task, batch, delivery. Pure: no IO."""
