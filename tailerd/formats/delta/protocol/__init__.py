"""The Delta protocol: one pure module per section, with bytes and Arrow data as input."""
