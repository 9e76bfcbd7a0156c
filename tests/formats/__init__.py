"""The contract of table formats: one suite, every format."""
