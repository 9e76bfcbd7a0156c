"""What is legal: one pure module per section of the Delta protocol, fed bytes and Arrow."""
