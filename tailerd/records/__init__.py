"""Arrow batches become record keys and values, column by column. Pure: no IO."""
