"""Servers of Azure and Google for tests."""
