"""Servers that speak S3, and what stands between them and a client in tests of faults."""
