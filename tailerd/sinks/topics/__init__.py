"""What sinks into topics have in common: names, routing, control records, dead letters. Pure."""
