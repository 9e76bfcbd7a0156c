"""From a configuration to what it names: tables, offsets and running pipelines."""
