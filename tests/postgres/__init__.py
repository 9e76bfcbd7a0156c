"""A real PostgreSQL for tests."""
