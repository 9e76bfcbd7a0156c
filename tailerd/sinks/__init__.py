"""Sinks deliver change rows: the contract is in `base`, each sink in its own folder."""
