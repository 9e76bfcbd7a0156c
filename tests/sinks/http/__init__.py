"""The HTTP sink against a real endpoint on loopback."""
